// The live page: what the gateway tells each second, and the two things an operator does here.

import { Agents } from "./agents.js";
import { Backends } from "./backends.js";
import { Breaking } from "./breaking.js";
import { Chart, Steps } from "./charts.js";
import { attribute, byId, element, text } from "./elements.js";
import { Queue } from "./queue.js";
import { ask, forgetToken, hasToken, keepToken, listen } from "./stream.js";
import { age, clock, count, duration, rate } from "./words.js";

const CHANGES_MAX = 20;
const CLOSED = new Set(["starting", "down"]); // nobody knows what slots they have
const COLOURS = 8; // of lines; more backends take them in turn

const backends = new Backends(byId("backends"), steer);
const queue = new Queue();
const agents = new Agents();
const breaking = new Breaking();
const steps = new Steps();
const ttftChart = new Chart(byId("ttft-chart"), duration);
const rateChart = new Chart(byId("rate-chart"), rate);
let names = []; // of the backends, as configured
let lostAt = null;

listen({
  heard: (name, data) => ({ figures, lines, state })[name]?.(data),
  connected() {
    lostAt = null;
    byId("page").hidden = false;
    connection("live", "live");
  },
  lost(why) {
    lostAt ??= { at: Date.now(), why };
    lostAt.why = why;
    tellLost();
  },
  refused: token,
});
setInterval(() => lostAt && tellLost(), 1000);

// -- what the gateway tells --------------------------------------------------------------------------

function figures(now) {
  names = now.backends.map((one) => one.backend.name);
  text(byId("gateway"), now.ready ? "" : now.reason);
  byId("no-backends").hidden = names.length > 0;
  backends.show(now.backends.map((one, place) => ({ ...one, colour: colour(place) })));
  queue.show(now);
  tiles(now);
}

function lines(told) {
  steps.take(told);
  agents.show(told.agents);
  breaking.show(told);
  ttftChart.show([
    { name: "median", className: "c0", values: steps.values((step) => step.ttft_p50) },
    { name: "95th percentile", className: "c1", values: steps.values((step) => step.ttft_p95) },
  ], steps);
  const speed = (name) => (step) => step.tokens_per_second[name] ?? 0;
  rateChart.show(names.map((name, place) => (
    { name, className: colour(place), values: steps.values(speed(name)) }
  )), steps);
  const { ttft_p50: median, ttft_p95: slow } = told.steps.at(-1);
  text(byId("now-ttft"), median === null ? "–" : duration(median));
  text(byId("now-ttft-note"), slow === null ? "no stream has begun" : `95 % within ${duration(slow)}`);
}

function colour(place) {
  return `c${place % COLOURS}`;
}

function state({ at, backend, state: become, reason }) {
  const words = element("span", "change", element("b", "", backend), " ", become, reason ? `: ${reason}` : "");
  byId("changes").prepend(element("li", "", element("time", "", clock(at)), words));
  while (byId("changes").children.length > CHANGES_MAX) byId("changes").lastElementChild.remove();
  byId("no-changes").hidden = true;
}

function tiles(now) {
  const open = now.backends.map((one) => one.backend).filter(({ state }) => !CLOSED.has(state));
  const slots = open.map((one) => one.slots);
  const sum = (name) => slots.reduce((total, one) => total + one[name], 0);
  const [leaving, foreign] = [sum("leaving"), sum("foreign")];
  text(byId("now-slots"), `${count(sum("in_use"))} of ${count(sum("total"))}`);
  const ready = now.backends.filter((one) => one.backend.state === "ready").length;
  const notes = [
    `${ready} of ${names.length} backends ready`,
    leaving ? `${leaving} leaving` : "",
    foreign ? `${foreign} of others` : "",
  ];
  text(byId("now-slots-note"), notes.filter(Boolean).join(", "));
  const waiting = count(Object.values(now.waiting).reduce((total, number) => total + number, 0));
  text(byId("now-waiting"), waiting);
  const { oldest_seconds: oldest } = now;
  text(byId("now-waiting-note"), oldest === null ? "nobody" : `the oldest for ${age(oldest)}`);
  text(byId("now-rate"), `${rate(now.backends.reduce((total, one) => total + one.tokens_per_second, 0))} tok/s`);
  document.title = oldest === null ? "slotgate" : `${waiting} waiting · slotgate`;
}

// -- the connection -----------------------------------------------------------------------------------

function connection(state, words) {
  attribute(byId("connection"), "data-state", state);
  text(byId("connection"), words);
  attribute(document.body, "data-stale", state === "lost" ? "" : null);
}

function tellLost() {
  connection("lost", `connection lost ${age((Date.now() - lostAt.at) / 1000)} ago: ${lostAt.why}; trying again`);
}

/** Ask for the operator's token; done when one was given. */
function token() {
  const [door, field] = [byId("door"), byId("token")];
  text(byId("door-fault"), hasToken() ? "This is not the token." : "");
  forgetToken();
  door.hidden = false;
  byId("page").hidden = true;
  connection("closed", "token needed");
  field.value = "";
  field.focus();
  return new Promise((given) => {
    door.onsubmit = (event) => {
      event.preventDefault();
      keepToken(field.value);
      door.hidden = true;
      given();
    };
  });
}

// -- what an operator does ------------------------------------------------------------------------------

async function steer(name, does) {
  let fault = "";
  try {
    const response = await ask(`admin/backends/${encodeURIComponent(name)}/${does}`, { method: "POST" });
    if (!response.ok) fault = (await response.json()).error.message;
  } catch {
    fault = "the gateway did not answer.";
  }
  text(byId("fault"), fault && `${name} could not be ${does === "drain" ? "drained" : "resumed"}: ${fault}`);
}
