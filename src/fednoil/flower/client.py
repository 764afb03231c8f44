"""The ClientApp: a few kinds of message, each answered with what its form allows or with an error.

The node logs errors in full. The server gets only the messages of refusals, which are about the federation: other
errors might name files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from fednoil import __version__
from fednoil.errors import UserError
from fednoil.flower.messages import (
    AUDIT_REPLY,
    EVALUATE_REPLY,
    HELLO_ORDER,
    HELLO_REPLY,
    KEYS_ORDER,
    KEYS_REPLY,
    PROTOCOL,
    REFUSE_ORDER,
    REFUSE_REPLY,
    REVEAL_ORDER,
    REVEAL_REPLY,
    SCORE_REPLY,
    SHARES_ORDER,
    SHARES_REPLY,
    Arrays,
    BadMessage,
    Body,
    Form,
    Refusal,
    clean,
    masked_form,
    model_arrays,
    order_form,
    pack,
    review_form,
    secure_form,
    unpack,
    update_form,
)
from fednoil.flower.node import Node
from fednoil.flower.secure_node import Session
from fednoil.flower.settings import NodeSettings
from fednoil.flower.state import NodeState
from fednoil.flower.terms import CommonTerms, Founders
from fednoil.flower.work import Order, configured, introduce
from fednoil.tensors import Tensors

log = logging.getLogger("flwr.fednoil")
app = ClientApp()
_MOST_FOUNDERS = 10**5  # more than any federation has; a node makes room for them


def _guarded(message: Message, work: Callable[[], RecordDict], name: str = "") -> Message:
    """The reply to a message, whatever happens; an error begins with the node's `name` if the server doesn't know it
    yet."""
    try:
        return Message(work(), reply_to=message)
    except (Refusal, BadMessage) as error:
        reason = clean(error)  # it may quote what the server sent
        log.error("%s: %s", message.metadata.message_type, reason)
    except UserError as error:
        log.error("%s: %s", message.metadata.message_type, error)
        reason = "failed at the node; see its own log"
    except Exception as error:
        log.exception("%s failed", message.metadata.message_type)
        reason = f"failed at the node with {type(error).__name__}; see its own log"
    reason = f"{name}: {reason}" if name else reason
    return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message)


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Introduce this node."""

    def work() -> RecordDict:
        values = unpack(HELLO_ORDER, message.content).values
        _check_protocol(values)
        site = introduce(NodeSettings.read(context.node_config), values["config"])
        numbers = {
            "samples": site.samples,
            "held_out": site.held_out,
            "counts": list(site.counts),
            "mean": list(site.mean),
            "std": list(site.std),
        }
        about = {
            "client": site.name,
            "version": __version__,
            "partition": -1 if site.partition is None else site.partition,
            "classes": list(site.class_names),
            "shape": list(site.image_shape),
            "columns": list(site.columns),
        }
        return pack(HELLO_REPLY, Body(numbers=numbers, values=about))

    return _guarded(message, work, _name(context))


def _name(context: Context) -> str:
    """The node's name, if its settings can be read."""
    try:
        return NodeSettings.read(context.node_config).client_id
    except UserError:
        return ""


@app.query("refuse")
def refuse(message: Message, context: Context) -> Message:
    """The server refuses this node; the reason goes to the node's log, for its operator."""

    def work() -> RecordDict:
        log.error("this node does not take part: %s", clean(unpack(REFUSE_ORDER, message.content).values["reason"]))
        return pack(REFUSE_REPLY, Body())

    return _guarded(message, work)


@app.query("score")
def score(message: Message, context: Context) -> Message:
    """How much the model trusts the labels here."""

    def work() -> RecordDict:
        node, received = _node(message, context)
        return pack(SCORE_REPLY, Body(numbers={"score": node.score(received)}))

    return _guarded(message, work)


@app.query("review")
def review(message: Message, context: Context) -> Message:
    """Review the labels here; the server gets only the numbers that the learner declares."""

    def work() -> RecordDict:
        node, received = _node(message, context)
        result = node.review(received)
        return pack(review_form(node.work.experiment.learner), Body(numbers=dict(result.numbers)))

    return _guarded(message, work)


@app.query("audit")
def audit(message: Message, context: Context) -> Message:
    """Find the wrong labels here and write them on the node; the server gets only their share."""

    def work() -> RecordDict:
        node, received = _node(message, context)
        return pack(AUDIT_REPLY, Body(numbers={"noise_ratio": node.audit(received)}))

    return _guarded(message, work)


@app.query("keys")
def keys(message: Message, context: Context) -> Message:
    """Begin a secure sum."""

    def work() -> RecordDict:
        session, _ = _session(message, context, KEYS_ORDER)
        mask_key, share_key = session.keys()
        return pack(KEYS_REPLY, Body(values={"mask_key": mask_key, "share_key": share_key}))

    return _guarded(message, work)


@app.query("shares")
def shares(message: Message, context: Context) -> Message:
    """Share this node's secrets of a secure sum with other clients, each encrypted for one of them."""

    def work() -> RecordDict:
        session, values = _session(message, context, SHARES_ORDER)
        lists = [values[name] for name in ("clients", "mask_keys", "share_keys")]
        if len({len(one) for one in lists}) != 1 or len(set(lists[0])) != len(lists[0]):
            raise BadMessage("'clients', 'mask_keys' and 'share_keys' don't fit together")
        found = session.shares({client: (one, other) for client, one, other in zip(*lists, strict=True)})
        return pack(SHARES_REPLY, Body(values={"clients": list(found), "shares": list(found.values())}))

    return _guarded(message, work)


@app.query("reveal")
def reveal(message: Message, context: Context) -> Message:
    """Help to reveal a secure sum."""

    def work() -> RecordDict:
        session, values = _session(message, context, REVEAL_ORDER)
        return pack(REVEAL_REPLY, Body(values={"shares": session.reveal(values["alive"], values["lost"])}))

    return _guarded(message, work)


def _session(message: Message, context: Context, form: Form) -> tuple[Session, dict[str, Any]]:
    """This node's part in the secure sum that a message is about, and the message's values."""
    values = unpack(form, message.content).values
    _check_protocol(values)
    settings = NodeSettings.read(context.node_config)
    if configured(values["config"], settings.trust).privacy.sees != "sum":
        raise Refusal("this run has no secure sums (privacy.sees)")
    state = NodeState(settings.state / settings.client_id, values["run"])
    return Session(state.folder, values["client"], values["round"]), values


@app.train()
def train(message: Message, context: Context) -> Message:
    """One client's turn."""

    def work() -> RecordDict:
        summed = _summed(message)
        node, received = _node(message, context, summed)
        if summed is None:
            found = node.train(received)
            form = update_form(model_arrays(received), node.work.experiment.learner)
            return pack(form, Body(found.tensors, dict(found.numbers)))
        result, vector = node.train_in_secret(received, *summed)
        return pack(masked_form(len(vector)), Body({"masked": vector}, dict(result.numbers)))

    return _guarded(message, work)


def _summed(message: Message) -> tuple[dict[int, str], int] | None:
    """The shares for this node, by sender, and among how many clients the sum is; None: it is for no sum."""
    values = message.content.config_records.get("values")
    if values is None or "among" not in values:
        return None
    found = unpack(secure_form({}), RecordDict({"values": values})).values
    if len(found["senders"]) != len(found["shares"]):
        raise BadMessage("'senders' and 'shares' have different lengths")
    return dict(zip(found["senders"], found["shares"], strict=True)), found["among"]


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Test the client's model on what the client holds out."""

    def work() -> RecordDict:
        node, received = _node(message, context)
        found = node.evaluate(received)
        return pack(EVALUATE_REPLY, Body(numbers={"right": found.right, "samples": found.samples, "loss": found.loss}))

    return _guarded(message, work)


def _node(message: Message, context: Context, summed: object = None) -> tuple[Node, Tensors]:
    """The node ready for this order, which may be to train for a secure sum, and the model it was sent."""
    form = order_form if summed is None else secure_form
    values = _peek(message, form)
    known = {"class_names": values["classes"], "image_shape": values["shape"], "columns": values["columns"]}
    agreement = CommonTerms.of({**known, **_scale(values)})
    founders = Founders(values["founders"], values["samples"])
    if not 1 <= founders.clients <= min(founders.samples, _MOST_FOUNDERS):
        raise BadMessage(f"{founders.clients} 'founders' with {founders.samples} 'samples' are not possible")
    if len(values["signals"]) != len(values["signal_values"]):
        raise BadMessage("'signals' and 'signal_values' have different lengths")
    signals = dict(zip(values["signals"], values["signal_values"], strict=True))
    config, run, client, round_idx, epochs = (values[k] for k in ("config", "run", "client", "round", "epochs"))
    order = Order(config, run, client, round_idx, epochs, agreement, founders, signals)
    node = Node(NodeSettings.read(context.node_config), order)
    if node.work.experiment.fixed_hash() != values["frozen"]:
        start = node.work.experiment.config.model.start
        have = f"the file model.start = '{start}'" if start else "the model's code"
        raise Refusal(f"its frozen parameters differ from the server's; it needs {have} that the server has")
    arrays = model_arrays(node.work.experiment.initial_model())
    return node, unpack(form(arrays), message.content).arrays


def _peek(message: Message, form: Callable[[Arrays], Form]) -> dict[str, Any]:
    """The values of an order: they say which model its arrays must fit."""
    content = RecordDict({name: record for name, record in message.content.items() if name == "values"})
    values = unpack(form({}), content).values
    _check_protocol(values)
    return values


def _scale(values: dict[str, Any]) -> dict[str, tuple[float, ...]]:
    return {"mean": tuple(values["mean"]), "std": tuple(values["std"])}


def _check_protocol(values: dict[str, Any]) -> None:
    if values["protocol"] != PROTOCOL:
        raise Refusal(f"it uses protocol {PROTOCOL}, the server {values['protocol']}; install the same fednoil on both")
