"""What a user is meant to see in one line: bad input, training that failed, and what makes a run slower."""

import errno
import re
from collections.abc import Sequence


class UserError(Exception):
    """Bad input or a bad environment.

    The message is one line that names the thing (key, file, value) and says what would be right.
    The command line prints it and exits with status 2; nothing recorded so far is lost.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def one_line(text: object) -> str:
    """The text with a space for each line break and whatever else can't be shown."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())


class Diverged(UserError):
    """Training produced numbers that are not finite; the run can't continue."""


class Slower(UserWarning):
    """Something that only makes a run slower; reported once."""


def full_disk(error: OSError) -> str | None:
    """One line that says which file a full disk has no room for; None for other errors."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    return f"{error.filename or 'writing'}: {error.strerror}; free some space"


def gpu_is_full(error: BaseException) -> bool:
    """Whether an error says that a GPU has no memory left.

    PyTorch has a special class only for its allocator's failures, not for those of a context, a stream, a graph or a
    library's workspace. Its asynchronous allocator (`backend:cudaMallocAsync`) doesn't name CUDA in its first line.
    """
    said = r"(CUDA|Allocation on device).*out of memory|CU(BLAS|DNN)_STATUS_ALLOC_FAILED"
    return isinstance(error, RuntimeError) and re.search(said, str(error)) is not None


def full_gpu(error: BaseException, advice: str) -> str:
    """One line that says that the GPU's memory is full, and what to do about it."""
    return f"the GPU's memory is full ({str(error).splitlines()[0]}); {advice}"


def few_of(names: Sequence[str], most: int = 10, between: str = ", ") -> str:
    """Names for one line: the first of them, and how many more there are."""
    first = between.join(names[:most])
    return first if len(names) <= most else f"{first}{between.strip(' ,')} and {len(names) - most} more"


def counted(count: int, noun: str) -> str:
    """`1 round`, `2 rounds`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def nearest(word: str, choices: "list[str] | tuple[str, ...]") -> str:
    """Return `; did you mean 'x'?` for the choice most like `word`, whatever their case, or an empty string."""
    from difflib import get_close_matches

    lowered = {choice.lower(): choice for choice in choices}
    found = get_close_matches(word.lower(), list(lowered), n=1, cutoff=0.6)
    return f"; did you mean '{lowered[found[0]]}'?" if found else ""


def check_known(option: str, given: Sequence[str], known: list[str]) -> None:
    """Refuse values of an option that are not among those known."""
    for name in given:
        if name not in known:
            raise UserError(f"{option} {name}: choose {', '.join(known)}{nearest(name, known)}")
