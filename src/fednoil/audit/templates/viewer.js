"use strict";
// One image as large as it was kept, beside two trusted examples of its given and of its suggested class.
const Viewer = (() => {
  const { $, make } = Page, { data } = Decisions;
  let shown;  // the image that is open

  const source = (n) => `data:image/webp;base64,${$(`large-${n}`).textContent}`;
  function picture(i) {
    const text = `picture ${Decisions.item(i)}`;
    if (data.large[i] !== undefined) return make("img", { src: source(data.large[i]), alt: text });
    const canvas = make("canvas", { width: data.picture.width, height: data.picture.height, role: "img", "aria-label": text });
    queueMicrotask(() => Gallery.paint(canvas, i));
    return canvas;
  }
  function examples(c, what) {
    const found = data.trusted[c] || [];
    const pictures = found.map(([n, name]) => make("img", { src: source(n), alt: `trusted: ${name}`, title: name }));
    const none = make("p", { class: "soft" }, "no example that the audit trusts");
    return make("figure", {}, make("figcaption", {}, `${what}: `, make("b", {}, data.classes[c])),
      ...(pictures.length ? pictures : [none]));
  }
  function show(i) {
    shown = i;
    $("viewer-title").textContent = Gallery.describe(i);
    $("viewer-picture").replaceChildren(picture(i));
    const same = data.given[i] === data.suggested[i];
    $("viewer-examples").replaceChildren(examples(data.given[i], "trusted, as given"),
      ...(same ? [] : [examples(data.suggested[i], "trusted, as suggested")]));
    for (const button of $("viewer").querySelectorAll("[data-do]")) {
      button.setAttribute("aria-pressed", button.dataset.do === Decisions.name(Decisions.state(i)));
    }
  }
  function open(i) {
    show(i);
    if (!$("viewer").open) $("viewer").showModal();
  }
  return { open, refresh: () => { if ($("viewer").open) show(shown); }, shown: () => shown, isOpen: () => $("viewer").open };
})();
