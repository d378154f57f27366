// The admin page: reads JSON from /api/ and shows it. Nothing from the server becomes markup; all
// text is set as text.
"use strict";

const HISTORY_MAX = 300; // seconds that the charts show
const RETRY_MS = 2000;
const TOKEN_NAME = "todana-admin-token";
const COLOURS = ["#0b5cad", "#b3541e", "#3f7d20", "#8a3ffc", "#a3170c", "#5b6770"];
const DARK_COLOURS = ["#7ab8f5", "#f2a65a", "#8fd16a", "#c4a1ff", "#ff9a8f", "#a4a9b0"];

const main = document.getElementById("main");
const state = { last: null, before: null, history: [], figures: null, view: null, token: readToken() };

function readToken() {
  try {
    return sessionStorage.getItem(TOKEN_NAME);
  } catch {
    return null;
  }
}

// --- elements -----------------------------------------------------------------------------------

/**
 * Creates an element. Attributes that begin with "on" are listeners. Children are text or nodes.
 */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

function table(caption, heads, rows) {
  const head = (text) => make("th", { scope: "col", class: text.startsWith("#") ? "number" : undefined }, text.replace(/^#/, ""));
  return make(
    "div",
    { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    make("table", {}, make("thead", {}, make("tr", {}, heads.map(head))), make("tbody", {}, rows)),
  );
}

const row = (...cells) =>
  make("tr", {}, cells.map((cell) => (cell instanceof HTMLTableCellElement ? cell : make("td", { class: "text" }, cell))));
const numberCell = (value) => make("td", { class: "number" }, value);

/** Returns a link to the explanation of a figure. */
const explained = (name, text) => make("a", { href: `#figures/${name}` }, text);

// --- numbers ------------------------------------------------------------------------------------

function count(value) {
  if (value === undefined || value === null) return "-";
  if (value >= 1e9) return `${(value / 1e9).toFixed(2)} G`;
  if (value >= 1e6) return `${(value / 1e6).toFixed(2)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}

function bytes(value) {
  if (value === undefined || value === null) return "-";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

const micros = (value) => (value === null ? "-" : value < 1000 ? `${Math.round(value)} µs` : `${(value / 1000).toFixed(1)} ms`);

const time = (seconds) => new Date(seconds * 1000).toTimeString().slice(0, 8);

function duration(seconds) {
  if (seconds === undefined || seconds === null) return "-";
  if (seconds < 1) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 120) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  return days > 0 ? `${days} d ${hours} h` : hours > 0 ? `${hours} h ${minutes} min` : `${minutes} min`;
}

// --- the server ---------------------------------------------------------------------------------

class RequestError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function send(path, options = {}) {
  const headers = state.token ? { Authorization: `Bearer ${state.token}` } : {};
  let response;
  try {
    response = await fetch(`api/${path}`, { ...options, headers });
  } catch {
    throw new RequestError(0, "the server cannot be reached");
  }
  if (response.ok) return response;
  const why = await response.json().then((body) => body.error, () => response.statusText);
  if (response.status === 401) askForToken(why);
  throw new RequestError(response.status, why);
}

const read = (path, options) => send(path, options).then((response) => response.json());

/** Receives the status of the server each second, for as long as the page is open. */
async function follow() {
  for (;;) {
    try {
      const reader = (await send("events")).body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        const events = (text + value).split("\n\n");
        text = events.pop();
        events.map((event) => event.match(/^data: (.*)$/m)).filter(Boolean).forEach((found) => take(JSON.parse(found[1])));
      }
      showConnection("the server has closed the connection; connecting again", true);
    } catch (error) {
      showConnection(error.message, true);
      if (error.status === 401) return;
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

function showConnection(text, isBad) {
  const place = document.getElementById("connection");
  if (place.textContent !== text) place.textContent = text;
  place.classList.toggle("bad", isBad);
}

function askForToken(why) {
  state.view = null;
  const field = make("input", { type: "password", id: "token", autocomplete: "off", required: true });
  const submit = (event) => {
    event.preventDefault();
    state.token = field.value;
    try {
      sessionStorage.setItem(TOKEN_NAME, state.token);
    } catch {
      // The token is asked for again after the page is loaded again.
    }
    follow();
    show();
  };
  main.replaceChildren(
    make("h2", {}, "Token"),
    make("p", {}, why),
    make("form", { onsubmit: submit }, make("label", {}, "Token of --admin-token-file", field), make("button", {}, "Open")),
  );
  field.focus();
}

// --- samples ------------------------------------------------------------------------------------

const sum = (figures, ...names) => names.reduce((all, name) => all + (figures[name] ?? 0), 0);

/** The lines of the chart of requests: label, and the counters that it adds up. */
const REQUESTS = [
  ["get", ["cmd_get", "cnt_get"]],
  ["set", ["cmd_set", "cnt_set"]],
  ["delete", ["delete_hits", "delete_misses", "cnt_remove"]],
  ["count", ["incr_hits", "incr_misses", "decr_hits", "decr_misses"]],
  ["touch", ["cmd_touch"]],
  ["other", ["cnt_misc", "cnt_script"]],
];

function take(status) {
  const now = status.figures;
  const old = state.last?.figures;
  const seconds = old ? (status.time_ms - state.last.time_ms) / 1000 : 0;
  const rate = (...names) => {
    const more = sum(now, ...names) - sum(old ?? now, ...names);
    return seconds > 0 && more >= 0 ? more / seconds : 0;
  };
  if (seconds > 0) {
    const [hits, misses] = [rate("get_hits"), rate("get_misses")];
    state.history.push({
      time: status.time_ms / 1000,
      rates: REQUESTS.map(([, names]) => rate(...names)),
      hitRatio: hits + misses > 0 ? hits / (hits + misses) : null,
      times: status.times_us,
      received: rate("bytes_read"),
      sent: rate("bytes_written"),
      memory: now.todana_anonymous_bytes,
      live: now.bytes,
      cpu: rate("rusage_user", "rusage_system"),
      evictions: rate("evictions"),
      expired: rate("todana_expired_removed_total"),
    });
    state.history.splice(0, state.history.length - HISTORY_MAX);
  }
  state.last = status;
  document.getElementById("server").textContent = `${now.todana_version ?? ""} ${status.listening.join(", ")}`;
  showConnection(`running for ${duration(now.uptime)}`, false);
  state.view?.update?.();
}

// --- charts -------------------------------------------------------------------------------------

const charts = new Set();
const isDark = matchMedia("(prefers-color-scheme: dark)");

/** Creates a chart. `lines` are pairs of a label and a function of a sample. */
function chart(title, lines, format) {
  const place = make("div", {});
  const text = make("span", { class: "note" });
  const figure = make("figure", {}, make("figcaption", {}, make("b", {}, title), " ", text), place);
  let plot = null;
  const draw = () => {
    plot?.destroy();
    const colours = isDark.matches ? DARK_COLOURS : COLOURS;
    const ink = getComputedStyle(document.body).getPropertyValue("color");
    const axis = { stroke: ink, grid: { stroke: "#8884", width: 1 }, ticks: { stroke: "#8884", width: 1 } };
    const options = {
      width: Math.max(200, place.clientWidth),
      height: 170,
      cursor: { y: false },
      legend: { live: false },
      scales: { x: { range: (_, first, last) => [last - HISTORY_MAX, last] }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map(time) }, { ...axis, size: 70, values: (_, ticks) => ticks.map(format) }],
      series: [{}, ...lines.map(([label], at) => ({ label, stroke: colours[at], width: 1.5, points: { show: false } }))],
    };
    plot = new uPlot(options, [[], ...lines.map(() => [])], place);
    update();
  };
  const update = () => {
    const samples = state.history;
    plot.setData([samples.map((sample) => sample.time), ...lines.map(([, of]) => samples.map(of))]);
    const last = samples[samples.length - 1];
    // The text says what a reader who does not see the chart needs.
    if (last) text.textContent = lines.map(([label, of]) => `${label} ${of(last) === null ? "-" : format(of(last))}`).join(", ");
  };
  const resize = () => plot?.setSize({ width: Math.max(200, place.clientWidth), height: 170 });
  charts.add({ draw, resize });
  return { figure, draw, update: () => plot && update() };
}

isDark.addEventListener("change", () => charts.forEach((one) => one.draw()));
addEventListener("resize", () => charts.forEach((one) => one.resize()));

// --- views --------------------------------------------------------------------------------------

function overview() {
  const percent = (value) => (value === null || value === undefined ? "-" : `${(value * 100).toFixed(1)} %`);
  const all = [
    chart("Requests per second", REQUESTS.map(([label], at) => [label, (sample) => sample.rates[at]]), count),
    chart("Reads that found a record", [["hit ratio", (sample) => sample.hitRatio]], (value) => percent(value)),
    chart("Time of a request in the server", [
      ["half", (sample) => sample.times.p50], ["99 %", (sample) => sample.times.p99], ["99.9 %", (sample) => sample.times.p999],
    ], micros),
    chart("Memory", [["process", (sample) => sample.memory], ["records", (sample) => sample.live]], bytes),
    chart("Network, bytes per second", [["received", (sample) => sample.received], ["sent", (sample) => sample.sent]], bytes),
    chart("Records removed per second", [["evicted", (sample) => sample.evictions], ["expired", (sample) => sample.expired]], count),
    chart("Processor, cores", [["used", (sample) => sample.cpu]], (value) => value.toFixed(value < 0.1 ? 3 : 2)),
  ];
  const [tiles, memory, warnings] = [make("div", { class: "tiles" }), make("div", {}), make("div", {})];
  main.replaceChildren(
    make("h2", {}, "Overview"), warnings, tiles, make("h2", {}, "Memory"), memory,
    make("h2", {}, "The last five minutes"), make("div", { class: "charts" }, all.map((one) => one.figure)),
  );
  all.forEach((one) => one.draw());
  let keyShare = null;
  read("records?limit=200").then((page) => {
    keyShare = shareOfKeys(page.records);
  }, () => {}); // Without a sample, keys and values are shown together.
  return () => {
    if (!state.last) return;
    const figures = state.last.figures;
    const last = state.history[state.history.length - 1];
    const tile = (name, label, value) => make("div", { class: "tile" }, explained(name, label), make("b", {}, value));
    tiles.replaceChildren(
      tile("cmd_get", "requests per second", last ? count(last.rates.reduce((a, b) => a + b, 0)) : "-"),
      tile("get_hits", "hit ratio", percent(last?.hitRatio)),
      tile("curr_items", "records", count(figures.curr_items)),
      tile("todana_anonymous_bytes", "memory", bytes(figures.todana_anonymous_bytes)),
      tile("curr_connections", "connections", count(figures.curr_connections)),
      tile("evictions", "evictions", count(figures.evictions)),
      tile("todana_log_end", "update log", figures.todana_log_bytes === undefined ? "none" : bytes(figures.todana_log_bytes)),
      tile("todana_last_checkpoint_time", "last checkpoint",
        figures.todana_last_checkpoint_time ? `${duration(state.last.time_ms / 1000 - figures.todana_last_checkpoint_time)} ago` : "none"),
    );
    memory.replaceChildren(...memoryBar(figures, keyShare));
    warnings.replaceChildren(...warningsOf(state.last).map((text) => make("p", { class: "bad" }, text)));
    all.forEach((one) => one.update());
  };
}

/** Returns the share of keys in the bytes of some records, or null without records. */
function shareOfKeys(some) {
  const keys = some.reduce((all, record) => all + record.id.replace(/%../g, "x").length, 0);
  const values = some.reduce((all, record) => all + record.value_len, 0);
  return keys > 0 ? keys / (keys + values) : null;
}

/**
 * Returns a bar with the parts of the memory of the process. `keyShare` is the share of keys in the
 * records, or null if it is not known.
 */
function memoryBar(figures, keyShare) {
  const index = figures.hash_bytes ?? 0;
  const held = figures.todana_committed_bytes ?? 0;
  const records = Math.min(figures.bytes ?? 0, Math.max(0, held - index));
  const process = figures.todana_anonymous_bytes ?? 0;
  const limit = figures.limit_maxbytes;
  const parts = [
    ...(keyShare === null
      ? [["records", records, "bytes"]]
      : [["keys (estimated)", records * keyShare, "bytes"], ["values (estimated)", records * (1 - keyShare), "bytes"]]),
    ["index", index, "hash_bytes"],
    ["free in the engine", Math.max(0, held - index - records), "todana_committed_bytes"],
    ["connections, log and program", Math.max(0, process - held), "todana_anonymous_bytes"],
  ];
  const whole = Math.max(limit || 0, parts.reduce((all, [, size]) => all + size, 0), 1);
  const colours = isDark.matches ? DARK_COLOURS : COLOURS;
  const piece = ([, size], at) => {
    const element = make("i", {});
    element.style.width = `${(size / whole) * 100}%`;
    element.style.background = colours[at];
    return element;
  };
  const entry = ([label, size, name], at) => {
    const mark = make("i", {});
    mark.style.background = colours[at];
    return make("li", {}, mark, explained(name, label), ` ${bytes(size)}`);
  };
  const bar = make("div", { class: "bar", "aria-hidden": "true" }, parts.map(piece));
  const limits = make("li", {}, explained("limit_maxbytes", "limit"), ` ${limit ? bytes(limit) : "none"}`);
  return [bar, make("ul", { class: "key" }, parts.map(entry), limits)];
}

function warningsOf(status) {
  const { figures } = status;
  const found = [];
  if (figures.todana_loading) found.push("The server is loading its data.");
  if (figures.todana_log_takes_writes === 0) found.push("Changes cannot be written to disk.");
  if (figures.todana_superseded) found.push("Another server has become the master; this one refuses changes.");
  if (figures.todana_replica_connected === 0) found.push("The master cannot be reached.");
  if (figures.todana_replica_flags_lost) found.push("Records were sent to replicas without their client flags.");
  if (figures.curr_connections >= figures.max_connections * 0.9) found.push("The limit of connections is near.");
  for (const database of status.databases) {
    if (database.trouble) found.push(`Database ${database.name}: ${database.trouble}`);
  }
  return found;
}

function databases() {
  const [place, one] = [make("div", {}), make("div", { role: "status" })];
  main.replaceChildren(make("h2", {}, "Databases"), place, make("h2", {}, "Checkpoint and backup"), one);
  const [names, outcome] = [make("select", { id: "database" }), make("div", {})];
  const start = (what) => make("button", { type: "button", onclick: async () => {
    try {
      showExport(outcome, await read(`${what}?db=${names.value}`, { method: "POST" }));
    } catch (error) {
      outcome.replaceChildren(make("p", { class: "bad", role: "alert" }, error.message));
    }
  } }, what === "backup" ? "Back up" : "Write a checkpoint");
  one.append(make("form", { onsubmit: (event) => event.preventDefault() }, make("label", {}, "Database", names), start("checkpoint"), start("backup")), outcome);
  return async () => {
    if (!state.last) return;
    if (names.options.length !== state.last.databases.length) {
      names.replaceChildren(...state.last.databases.map((one, at) => make("option", { value: String(at) }, one.name)));
    }
    const last = await read("export");
    if (last) showExport(outcome, last);
    const rows = state.last.databases.map((one, at) =>
      row(
        make("a", { href: `#records/${at}/*` }, one.name), one.kind, numberCell(count(one.records)), numberCell(bytes(one.bytes)),
        numberCell(bytes(one.memory_bytes)), numberCell(bytes(one.disk_bytes)), numberCell(bytes(one.todana_database_log_bytes)),
        numberCell(count(one.evictions)), one.health ?? "in memory only",
      ),
    );
    const heads = ["name", "kind", "#records", "#bytes", "#memory", "#files", "#log", "#evictions", "health"];
    const none = state.last.is_proxy ? "A proxy has no databases." : "There is no database.";
    place.replaceChildren(rows.length ? table("Databases", heads, rows) : make("p", {}, none));
  };
}

/** Shows the progress or the result of a checkpoint or a backup. */
function showExport(place, last) {
  const text = last.error ?? last.outcome;
  const took = `${last.what} of ${last.database}: ${duration(last.seconds)}`;
  if (text) {
    place.replaceChildren(make("p", { class: last.error ? "bad" : undefined }, `${took}; ${text}`));
    return;
  }
  const bar = make("progress", { "aria-label": took, max: last.total || undefined, value: last.total ? last.done : undefined });
  place.replaceChildren(make("p", {}, took, " ", bar, last.total ? ` ${bytes(last.done)} of ${bytes(last.total)}` : ""));
}

function slowRequests() {
  const place = make("div", {});
  main.replaceChildren(make("h2", {}, "Slow requests"), place);
  const WHY = { slow: "slow", large: "large", wait: "waited for the disk or for replicas" };
  return async () => {
    const { requests, skipped, slow_ms: slow, large_bytes: large } = await read("slow-requests");
    const rows = requests.map((one) =>
      row(new Date(one.time_ms).toLocaleString(), WHY[one.why] ?? one.why, numberCell(`${one.ms} ms`), one.operation ?? "",
        visible((one.key ?? "").slice(0, SHOWN_KEY)), numberCell(bytes(one.value_len)), numberCell(bytes(one.received)),
        numberCell(bytes(one.sent)), one.client),
    );
    const limits = [slow === null ? [] : [`take ${slow} ms or more`], large === null ? [] : [`have ${bytes(large)} or more`]].flat();
    place.replaceChildren(
      make("p", { class: "note" }, limits.length ? `Requests that ${limits.join(" or ")}, the newest first${skipped ? `; ${skipped} more were only counted` : ""}.` : "The log is switched off."),
      rows.length
        ? table("Slow requests", ["time", "why", "#duration", "operation", "first key", "#value", "#received", "#sent", "client"], rows)
        : make("p", {}, "There was none."),
    );
  };
}

function connections() {
  const place = make("div", {});
  main.replaceChildren(make("h2", {}, "Connections"), place);
  const NAMES = {
    conn_read: "waits for a request", conn_nread: "sends a request", conn_parse_cmd: "request is executed",
    conn_mwrite: "receives a reply", conn_watch: "watches events",
  };
  return async () => {
    const { connections: all, count: open } = await read("connections");
    const rows = all.map((one) =>
      row(numberCell(one.descriptor), one.address, one.listener, NAMES[one.state] ?? one.state, numberCell(duration(one.idle_s))),
    );
    const more = open > all.length ? `, of which ${all.length} are shown` : "";
    place.replaceChildren(
      make("p", {}, `${open} connections${more}`),
      table("Connections", ["#descriptor", "client", "listener", "state", "#since the last request"], rows),
    );
  };
}

async function hotKeys(database = "0") {
  const names = (state.last ?? (await read("status"))).databases;
  const go = () => {
    location.hash = `#hot/${choice.value}`;
  };
  const choice = databaseChoice(names, database, go);
  const [place, one] = [make("div", {}), make("div", {})];
  main.replaceChildren(
    make("h2", {}, "Hot keys"),
    make("p", { class: "note" }, "The keys that are requested most, estimated from a sample of the last minutes."),
    make("form", { onsubmit: (event) => event.preventDefault() }, make("label", {}, "Database", choice)), place, one,
  );
  return async () => {
    if (place.contains(document.activeElement)) return;
    const { keys } = await read(`hot-keys?db=${encodeURIComponent(database)}`);
    const rows = keys.map((hot) => row(keyButton(database, hot, one), numberCell(count(hot.requests))));
    place.replaceChildren(rows.length ? table("Hot keys", ["key", "#requests"], rows) : make("p", {}, "No key was requested."));
  };
}

function replication() {
  const place = make("div", {});
  main.replaceChildren(make("h2", {}, "Replication"), place);
  return () => {
    if (!state.last) return;
    const { figures, replicas } = state.last;
    const master = figures.todana_replica_master;
    const facts = [
      ["todana_replica_connected", "connected", figures.todana_replica_connected ? "yes" : "no"],
      ["todana_replica_delay_seconds", "delay", duration(figures.todana_replica_delay_seconds)],
      ["todana_replica_lag_bytes", "bytes of the log that are missing here", bytes(figures.todana_replica_lag_bytes)],
    ];
    const rows = replicas.map((one) =>
      row(one.address, numberCell(one.server_id), numberCell(duration(one.delay_seconds)), numberCell(bytes(one.lag_bytes))),
    );
    place.replaceChildren(
      make("p", {}, master ? `This server follows ${master}.` : "This server follows no master."),
      master ? table("Master", ["figure", "value"], facts.map(([name, label, value]) => row(explained(name, label), value))) : "",
      make("h2", {}, "Replicas"),
      rows.length ? table("Replicas", ["address", "#server ID", "#delay", "#bytes missing"], rows) : make("p", {}, "No replica follows this server."),
    );
  };
}

async function figures(name) {
  state.figures ??= await read("figures");
  const filter = make("input", { type: "search", id: "filter", value: name ?? "" });
  const place = make("div", {});
  main.replaceChildren(
    make("h2", {}, "Figures"),
    make("p", {}, "Each figure has the same meaning in ", make("code", {}, "stats"), " and ", make("a", { href: "metrics" }, "/metrics"), "."),
    make("form", { onsubmit: (event) => event.preventDefault() }, make("label", {}, "Names or words", filter)),
    place,
  );
  const update = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = state.figures.filter((one) => {
      const text = `${one.name} ${one.metric} ${one.meaning} ${one.table}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    const value = (one) => {
      const own = (of) => (of[one.name] === undefined ? null : String(of[one.name]));
      const { figures: all = {}, databases: of = [], replicas = [] } = state.last ?? {};
      const list = one.table === "Databases" ? of : one.table === "Replicas" ? replicas : [all];
      return list.map(own).filter((text) => text !== null).join(", ") || "-";
    };
    const rows = shown.map((one) => row(one.name, value(one), one.meaning, one.metric || "-", one.table));
    place.replaceChildren(table("Figures", ["name", "value", "meaning", "metric", "section"], rows));
  };
  filter.addEventListener("input", update);
  update();
  return update;
}

// --- records ------------------------------------------------------------------------------------

async function records(database = "0", pattern = "", least = "") {
  const names = (state.last ?? (await read("status"))).databases;
  const choice = databaseChoice(names, database);
  const field = make("input", { id: "pattern", type: "search", value: pattern, placeholder: "user:*", size: 30, spellcheck: "false" });
  const size = make("input", { id: "least", type: "number", min: "0", value: least, placeholder: "0" });
  const [list, one, note] = [make("div", {}), make("div", {}), make("p", { class: "note", role: "status" })];
  const submit = (event) => {
    event.preventDefault();
    const length = Number(size.value) > 0 ? `/${size.value}` : "";
    location.hash = `#records/${choice.value}/${encodeURIComponent(field.value || "*")}${length}`;
  };
  main.replaceChildren(
    make("h2", {}, "Records"),
    make("form", { onsubmit: submit },
      make("label", {}, "Database", choice),
      make("label", {}, "Keys: * stands for any text, ? for one byte", field),
      make("label", {}, "Bytes of the value, at least", size),
      make("button", {}, "Search"),
    ),
    note, list, one,
  );
  if (pattern) search(database, pattern, least, list, one, note);
  return null;
}

function databaseChoice(names, database, onchange = () => {}) {
  const option = (one, at) => make("option", { value: String(at), selected: String(at) === database }, one.name);
  return make("select", { id: "database", onchange }, names.map(option));
}

async function search(database, pattern, least, list, one, note) {
  const wanted = /[*?]/.test(pattern) ? pattern : `${pattern}*`;
  const shown = table("Records", ["key", "#bytes", "#flags", "#expires in"], []);
  const body = shown.querySelector("tbody");
  const more = make("button", { type: "button", hidden: true }, "More");
  list.replaceChildren(shown, more);
  let [next, seen, found] = ["", 0, 0];
  const load = async () => {
    more.hidden = true;
    const target = found + 100;
    try {
      do {
        const query = `db=${encodeURIComponent(database)}&pattern=${encodeURIComponent(wanted)}&after=${encodeURIComponent(next)}&min_len=${Number(least) || 0}`;
        const page = await read(`records?${query}`);
        if (!list.contains(body)) return;
        [next, seen, found] = [page.next, seen + page.seen, found + page.records.length];
        body.append(...page.records.map((record) => listed(database, record, one)));
        note.textContent = `${found} found, ${count(seen)} records read${next ? "" : ", no more"}`;
      } while (next && found < target);
      more.hidden = !next;
    } catch (error) {
      note.textContent = error.message;
    }
  };
  more.addEventListener("click", load);
  await load();
}

const SHOWN_KEY = 120;

/** Returns a button that shows a record. */
function keyButton(database, record, one) {
  const name = record.key.length > SHOWN_KEY ? `${record.key.slice(0, SHOWN_KEY)}…` : record.key;
  return make("button", { type: "button", class: "mono", onclick: () => openRecord(database, record.id, one) }, visible(name));
}

function listed(database, record, one) {
  return row(keyButton(database, record, one), numberCell(count(record.value_len)), numberCell(record.flags), numberCell(record.ttl_s === null ? "never" : duration(record.ttl_s)));
}

/** Returns text in which control characters, and those that change its direction, are visible. */
function visible(text) {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (found) =>
    `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Shows a record. With `toChange`, also shows fields to change it. */
async function openRecord(database, id, place, toChange = false, done = "") {
  const query = `record?db=${encodeURIComponent(database)}&key=${id}`;
  let record;
  try {
    record = await read(query, { method: toChange ? "POST" : "GET" });
  } catch (error) {
    place.replaceChildren(make("p", { class: "bad", role: "alert" }, error.message));
    return;
  }
  const value = Uint8Array.from(atob(record.value_base64), (letter) => letter.charCodeAt(0));
  const forms = formsOf(value);
  const isWhole = value.length === record.value_len;
  const shown = make("pre", { tabindex: "0", "aria-label": "Value" });
  const showForm = () => {
    shown.textContent = forms[choice.value]();
  };
  const choice = make("select", { id: "form", onchange: showForm }, Object.keys(forms).map((form) => make("option", {}, form)));
  const outcome = make("p", { role: "status" }, done);
  const begin = make("button", { type: "button", onclick: () => openRecord(database, id, place, true) }, "Change or delete");
  const attributes = `flags ${record.flags}, expires ${record.ttl_s === null ? "never" : `in ${duration(record.ttl_s)}`}`;
  const heading = make("h2", { class: "mono", tabindex: "-1" }, visible(record.key.slice(0, SHOWN_KEY)));
  place.replaceChildren(
    heading,
    make("p", { class: "note" }, `${count(record.value_len)} bytes${isWhole ? "" : `, of which ${count(value.length)} are shown`}, ${attributes}`),
    make("label", {}, "Show as", choice), shown,
    toChange ? changeForm(record, isWhole ? forms.text : undefined, query, outcome, (text) => openRecord(database, id, place, false, text)) : begin,
    outcome,
  );
  showForm();
  heading.focus();
}

/** Returns fields to change a record. `text` is missing if its value cannot be edited as text. */
function changeForm(record, text, query, outcome, reopen) {
  const change = async (method, parameters, body) => {
    try {
      await read(`${query}&version=${record.version}${parameters}`, { method, body });
      if (method === "PUT") reopen("stored");
      else outcome.textContent = "deleted";
    } catch (error) {
      outcome.textContent = error.message;
    }
  };
  const value = make("textarea", { id: "value", spellcheck: "false", disabled: !text });
  value.value = text ? text() : "";
  const ttl = make("input", { id: "ttl", type: "number", min: "1", placeholder: "never", value: record.ttl_s ?? "" });
  const flags = make("input", { id: "flags", type: "number", min: "0", value: String(record.flags) });
  const store = (event) => {
    event.preventDefault();
    change("PUT", `&ttl=${ttl.value}&flags=${flags.value}`, value.value);
  };
  return make("form", { onsubmit: store },
    make("label", { class: "full" }, text ? "New value" : "The value is not text, or too long to be changed here", value),
    make("label", {}, "Expires in seconds", ttl), make("label", {}, "Flags", flags),
    make("button", { disabled: !text }, "Store"),
    make("button", { type: "button", onclick: () => change("DELETE", "") }, "Delete"));
}

/** Returns the forms in which a value can be shown, the most readable one first. */
function formsOf(value) {
  const forms = {};
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(value);
    try {
      const parsed = JSON.parse(text);
      if (typeof parsed === "object" && parsed !== null) forms.JSON = () => JSON.stringify(parsed, null, 2);
    } catch {
      // It is not JSON.
    }
    forms.text = () => text;
    const cells = text.split("\0");
    // Columns of a row of a table: names and values, each ended by a zero byte except the last.
    if (cells.length > 1 && cells.length % 2 === 0) {
      forms.table = () => cells.flatMap((cell, at) => (at % 2 ? [] : [`${visible(cell)}: ${visible(cells[at + 1])}`])).join("\n");
    }
  } catch {
    // It is not text.
  }
  forms.hex = () => {
    const lines = [];
    for (let at = 0; at < Math.min(value.length, 65536); at += 16) {
      const part = [...value.subarray(at, at + 16)];
      const digits = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(48);
      const letters = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
      lines.push(`${at.toString(16).padStart(6, "0")}  ${digits} ${letters}`);
    }
    return lines.join("\n");
  };
  return forms;
}

// --- navigation ---------------------------------------------------------------------------------

const VIEWS = { overview, databases, records, hot: hotKeys, slow: slowRequests, connections, replication, figures };
const VIEW_NAMES = { hot: "Hot keys", slow: "Slow requests" };

/** Shows the view that the address names: #VIEW/PARAMETER/... */
async function show() {
  const [name, ...parameters] = location.hash.slice(1).split("/");
  const view = Object.hasOwn(VIEWS, name) ? name : "overview";
  const links = Object.keys(VIEWS).map((one) =>
    make("a", { href: `#${one}`, "aria-current": one === view ? "page" : undefined }, VIEW_NAMES[one] ?? one[0].toUpperCase() + one.slice(1)));
  document.getElementById("views").replaceChildren(...links);
  charts.clear();
  state.view = null;
  const token = {};
  state.showing = token;
  try {
    const update = await VIEWS[view](...parameters.map(decode));
    if (state.showing !== token) return;
    let isBusy = false;
    state.view = { update: async () => {
      if (!update || isBusy) return;
      isBusy = true;
      try {
        await update();
      } catch (error) {
        showConnection(error.message, true);
      }
      isBusy = false;
    } };
    state.view.update();
  } catch (error) {
    if (error.status !== 401) main.replaceChildren(make("p", { class: "bad", role: "alert" }, error.message));
  }
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

addEventListener("hashchange", show);
show();
follow();
