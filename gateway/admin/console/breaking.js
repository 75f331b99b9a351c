// Whose prompts change where they should only grow: the engine reads again all that follows.

import { Keyed, attribute, byId, element, text } from "./elements.js";
import { count, duration, short } from "./words.js";

export class Breaking {
  constructor() {
    this.rows = new Keyed(byId("breaking"), () => new Row());
  }

  show({ breaking, breaking_total: total }) {
    byId("no-breaking").hidden = total > 0;
    const more = total - breaking.length;
    text(byId("breaking-note"), more > 0 ? `and ${count(more)} more ${more === 1 ? "agent" : "agents"}: slotgate prefix` : "");
    this.rows.show(breaking, (one) => one.agent);
  }
}

class Row {
  constructor() {
    this.agent = element("span", "agent");
    this.what = element("span", "what");
    this.price = element("span", "price");
    this.advice = element("p", "advice");
    this.node = element("li", "", element("p", "line", this.agent, this.what, this.price), this.advice);
  }

  show({ agent, breaks, turns, tokens, seconds, kinds: [worst, ...others] }) {
    text(this.agent, agent || "no name");
    attribute(this.agent, "title", agent);
    text(this.what, `${kind(worst)} in ${worst.path}, byte ${count(worst.offset)}`);
    text(this.price, `${short(tokens)} tok read again, ${duration(seconds)}`);
    const too = others.length ? `; also ${others.map(kind).join(", ")}` : "";
    const [first, ...rest] = worst.advice;
    text(this.advice, `${count(breaks)} of ${count(turns)} turns${too}. ${first.toUpperCase()}${rest.join("")}.`);
  }
}

const kind = (one) => one.kind.replaceAll("_", " ");
