// Who used how many tokens.

import { Keyed, attribute, byId, element, text } from "./elements.js";
import { count, short } from "./words.js";

export class Agents {
  constructor() {
    this.rows = new Keyed(byId("agents"), () => new Row());
  }

  show(agents) {
    byId("no-agents").hidden = agents.length > 0;
    byId("agents-legend").hidden = !agents.length;
    const most = Math.max(1, ...agents.map(sum));
    this.rows.show(agents.map((one) => ({ ...one, most })), (one) => one.agent);
  }
}

const sum = (one) => one.prompt_tokens + one.completion_tokens;

class Row {
  constructor() {
    this.agent = element("span", "agent");
    this.tokens = element("span", "tokens");
    this.parts = ["cached", "computed", "written"].map((kind) => element("span", `part ${kind}`));
    this.node = element("li", "", element("span", "line", this.agent, this.tokens), element("span", "bar", ...this.parts));
  }

  show(one) {
    text(this.agent, one.agent || "others");
    text(this.tokens, `${short(sum(one))} in ${count(one.requests)} ${one.requests === 1 ? "request" : "requests"}`);
    const cached = Math.min(one.cached_tokens, one.prompt_tokens);
    const shares = [cached, one.prompt_tokens - cached, one.completion_tokens];
    this.parts.forEach((part, place) => {
      part.style.width = `${(shares[place] / one.most) * 100}%`;
    });
    const words = `${count(cached)} prompt tokens cached, ${count(shares[1])} computed, ${count(shares[2])} written`;
    attribute(this.node, "title", words);
  }
}
