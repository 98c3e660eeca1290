// xterm writes its own style elements and style attributes, which the page's policy forbids to everybody. Through the
// object model the same can be said without: a sheet that the document adopts, and an element's own `style`.

const setAttribute = Element.prototype.setAttribute;

Element.prototype.setAttribute = function set(name, value) {
  if (name === "style") this.style.cssText = value;
  else setAttribute.call(this, name, value);
};

/** While this runs, a style element that is made stands for an adopted sheet. */
export function withSheets(make) {
  const create = document.createElement;
  document.createElement = (tag, ...rest) => (tag === "style" ? sheetElement(create) : create.call(document, tag, ...rest));
  try {
    return make();
  } finally {
    document.createElement = create;
  }
}

function sheetElement(create) {
  const sheet = new CSSStyleSheet();
  const element = create.call(document, "span");
  element.hidden = true;
  document.adoptedStyleSheets.push(sheet);
  Object.defineProperty(element, "textContent", { set: (text) => sheet.replaceSync(text) });
  element.remove = () => {
    const others = document.adoptedStyleSheets.filter((one) => one !== sheet);
    document.adoptedStyleSheets = others;
    Element.prototype.remove.call(element);
  };
  return element;
}
