// Who waits, in the order of starts, and why.

import { Keyed, attribute, byId, element, text } from "./elements.js";
import { age, count, duration, short } from "./words.js";

const REASONS = {
  not_ready: "not ready",
  paused: "paused",
  context: "too long for it",
  slots: "no free slot",
  kv_budget: "no memory left",
  prefill_gate: "long prompt ahead",
  interactive_reserve: "kept for people",
  hold: "better elsewhere than",
  standby: "stands by",
};

export class Queue {
  constructor() {
    this.rows = new Keyed(byId("queue"), () => new Row());
  }

  show({ queue, waiting }) {
    const total = Object.values(waiting).reduce((sum, number) => sum + number, 0);
    byId("queue-scroll").hidden = !queue.length;
    byId("no-queue").hidden = queue.length > 0;
    const classes = Object.entries(waiting).filter(([, number]) => number).map(([name, number]) => `${number} ${name}`);
    const shown = total > queue.length ? `; the first ${count(queue.length)} are shown` : "";
    text(byId("queue-count"), classes.join(", ") + shown);
    this.rows.show(queue.map((one, place) => ({ ...one, place: place + 1 })), (one) => one.id);
  }
}

class Row {
  constructor() {
    const cell = (name, label, kind = "") => {
      this[name] = element("td", kind);
      this[name].dataset.label = label;
      return this[name];
    };
    this.node = element(
      "tr", "",
      cell("place", "#", "number place"), cell("agent", "Agent", "agent"), cell("class", "Class", "class"),
      cell("model", "Model", "model"),
      cell("prompt", "Prompt", "number prompt"), cell("waits", "Waits", "number waits"),
      cell("starts", "Starts in", "number starts"),
      cell("why", "Held by", "why"),
    );
  }

  show(one) {
    text(this.place, one.place);
    text(this.agent, one.agent || "no name");
    attribute(this.agent, "title", one.agent);
    text(this.class, one.class);
    text(this.model, one.model);
    text(this.prompt, short(one.prompt_tokens));
    text(this.waits, age(one.age_seconds));
    text(this.starts, one.predicted_start_seconds === null ? "not known" : duration(one.predicted_start_seconds));
    text(this.why, why(one.why));
  }
}

/** {"spark-1": "slots", "spark-2": "slots", "vllm": "context"} -> "no free slot: spark-1, spark-2; ...". */
function why(reasons) {
  const backends = new Map();
  for (const [name, reason] of Object.entries(reasons)) {
    backends.set(reason, [...(backends.get(reason) ?? []), name]);
  }
  return [...backends].map(([reason, names]) => `${REASONS[reason] ?? reason}: ${names.join(", ")}`).join("; ");
}
