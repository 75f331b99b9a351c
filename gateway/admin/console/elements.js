// Elements are made once and changed in place, so that focus, selection and scroll position stay where they
// are. Text goes in as text, always: what a client named itself never becomes markup.

export const byId = (id) => document.getElementById(id);

/** A new element: its class, its text, its children. */
export function element(tag, className = "", ...content) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...content);
  return made;
}

/** Set text, if it is another one. */
export function text(node, words) {
  const said = String(words);
  if (node.textContent !== said) node.textContent = said;
}

/** Set an attribute, or take it away with null. */
export function attribute(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** The children of a list, one for each item, found again by the item's key. */
export class Keyed {
  constructor(parent, make) {
    this.parent = parent;
    this.make = make;
    this.parts = new Map();
  }

  /** Show these items, in this order; `key` tells which is which. */
  show(items, key) {
    const kept = new Map();
    let place = this.parent.firstElementChild;
    for (const item of items) {
      const id = key(item);
      const part = this.parts.get(id) ?? this.make(item);
      part.show(item);
      kept.set(id, part);
      if (part.node === place) place = place.nextElementSibling;
      else this.parent.insertBefore(part.node, place);
    }
    for (const [id, part] of this.parts) if (kept.get(id) !== part) part.node.remove();
    this.parts = kept;
  }
}
