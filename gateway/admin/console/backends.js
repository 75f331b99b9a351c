// Each backend a row of slots. A request keeps its place in the row for as long as it runs.

import { Keyed, attribute, element, text } from "./elements.js";
import { age, count, rate, short } from "./words.js";

const CARDS_MAX = 24; // slots that get a card each; of more there is a field of small squares
const ALMOST = 0.97; // a prompt that takes longer than predicted is not done

/** The list of all backends; `steer(name, "drain" | "resume")` does what the buttons say. */
export class Backends {
  constructor(list, steer) {
    this.rows = new Keyed(list, () => new Row(steer));
  }

  show(backends) {
    this.rows.show(backends, (one) => one.backend.name);
  }
}

class Row {
  constructor(steer) {
    this.name = element("h3");
    this.state = element("span", "state");
    this.reason = element("span", "reason");
    this.facts = element("p", "facts");
    this.key = element("span");
    this.speed = element("span");
    this.rate = element("p", "rate", this.key, this.speed);
    this.button = element("button", "steer");
    this.button.type = "button";
    this.button.addEventListener("click", () => steer(this.name.textContent, this.button.dataset.does));
    this.slots = element("ol", "slots");
    this.cells = new Keyed(this.slots, () => new Cell());
    this.places = new Map(); // of requests in the row
    const words = element("div", "words", element("div", "title", this.name, this.state, this.reason), this.facts);
    this.node = element("li", "backend", element("div", "head", words, this.rate, this.button), this.slots);
  }

  show({ backend, holders, tokens_per_second: speed, colour }) {
    text(this.name, backend.name);
    text(this.state, backend.state);
    attribute(this.state, "data-state", backend.state);
    text(this.reason, backend.reason || (backend.state === "down" ? backend.last_error : ""));
    text(this.facts, facts(backend));
    attribute(this.key, "class", `key ${colour}`);
    text(this.speed, `${rate(speed)} tok/s`);
    const held = backend.state === "draining" || backend.state === "drained";
    this.button.dataset.does = held ? "resume" : "drain";
    text(this.button, held ? "Resume" : "Drain");
    attribute(this.button, "aria-label", `${held ? "Resume" : "Drain"} ${backend.name}`);
    attribute(this.slots, "aria-label", `Slots of ${backend.name}: ${holders.length} of ${backend.slots.total} taken`);
    const cells = this.placed(backend, holders);
    attribute(this.slots, "data-size", cells.length > CARDS_MAX ? "squares" : "cards");
    this.cells.show(cells, (cell) => cell.place);
  }

  /** What is in each place: requests where they were, new ones in the first free places. */
  placed({ state, slots: { total, foreign } }, holders) {
    const running = new Set(holders.map((holder) => holder.id));
    for (const id of this.places.keys()) if (!running.has(id)) this.places.delete(id);
    const taken = new Set(this.places.values());
    for (const { id } of holders) {
      if (this.places.has(id)) continue;
      let place = 0;
      while (taken.has(place)) place++;
      taken.add(place);
      this.places.set(id, place);
    }
    const length = Math.max(total, holders.length + foreign, ...[...taken].map((place) => place + 1));
    const cells = Array.from({ length }, (_, place) => ({ place, state, over: place >= total, phase: "free" }));
    for (const holder of holders) Object.assign(cells[this.places.get(holder.id)], holder);
    let left = foreign;
    for (const cell of cells) if (left && cell.phase === "free" && left--) cell.phase = "foreign";
    return cells;
  }
}

class Cell {
  constructor() {
    this.agent = element("span", "agent");
    this.age = element("span", "age");
    this.class = element("span", "class");
    this.doing = element("span", "doing");
    this.fill = element("span", "fill");
    this.bar = element("span", "bar", this.fill);
    this.node = element(
      "li", "slot",
      element("span", "line", this.agent, this.age),
      element("span", "line", this.doing, this.class),
      this.bar,
    );
  }

  show(cell) {
    const { phase } = cell;
    attribute(this.node, "data-phase", phase);
    attribute(this.node, "data-over", cell.over ? "" : null);
    const busy = phase !== "free" && phase !== "foreign";
    const open = phase !== "free" || cell.state === "ready";
    text(this.agent, busy ? cell.agent || "no name" : open ? phase : cell.state);
    attribute(this.node, "data-closed", open ? null : "");
    text(this.age, busy ? age(cell.age_seconds) : "");
    text(this.class, busy ? cell.class : "");
    text(this.doing, busy ? doing(cell) : phase === "foreign" ? "not the gateway's" : "");
    attribute(this.node, "title", busy ? `${cell.agent}: ${doing(cell)}; ${prompt(cell)}` : null);
    const shown = `${cell.id} ${phase}`;
    this.fill.style.transition = shown === this.shown ? "" : "none"; // a new bar does not slide from the old one
    this.shown = shown;
    const read = progress(cell);
    attribute(this.bar, "data-known", read === null ? null : "");
    this.fill.style.transform = `scaleX(${read ?? 1})`;
  }
}

/** The share of a prompt that has been read, as predicted; null: nobody knows. */
function progress({ phase, read_seconds: read, predicted_seconds: predicted }) {
  if (phase !== "prefill") return 1;
  if (read === null) return null;
  return predicted > 0 ? Math.min(ALMOST, read / predicted) : ALMOST;
}

function doing(cell) {
  if (cell.phase === "leaving") return "client gone";
  if (cell.phase === "prefill") {
    const rest = short(cell.prompt_tokens - cell.cached_tokens);
    if (cell.read_seconds === null) return `to read ${rest}`;
    const late = cell.read_seconds > cell.predicted_seconds + 1;
    return late ? `reads ${rest}, late` : `reads ${Math.round(progress(cell) * 100)} % of ${rest}`;
  }
  if (cell.tokens_per_second === null) return "writes";
  return `${count(cell.tokens)} tok · ${rate(cell.tokens_per_second)}/s`;
}

function prompt({ prompt_tokens: tokens, cached_tokens: cached }) {
  return `prompt of ${count(tokens)} tokens${cached ? `, ${count(cached)} of them cached` : ""}`;
}

function facts({ engine, models, slots, context_tokens: context, prefix, backup }) {
  return [
    engine === "auto" ? "engine not known yet" : engine,
    models === null ? "models not known yet" : models.join(", "),
    `${slots.total} ${slots.total === 1 ? "slot" : "slots"} ${slots.source}`,
    context === null ? "" : `${short(context)} context`,
    prefix.hit_ratio === null ? "" : `${Math.round(prefix.hit_ratio * 100)} % of prompts cached`,
    backup ? "backup" : "",
  ].filter(Boolean).join(" · ");
}
