/* What every page of the portal shares: times, words, cells, icons, and the live connection. No library, no build. */
(() => {
  "use strict";

  const MINUTE = 60_000, HOUR = 3_600_000, DAY = 86_400_000;
  const THEME_KEY = "jupyterhub-bs-theme"; // the hub's own key: one choice for hub pages and ours
  const LOCALE = "en-GB";

  // Text and elements ----------------------------------------------------------------

  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  function el(tag, props = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(props)) setAttr(node, name, value);
    node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
    return node;
  }

  function setAttr(node, name, value) {
    if (value === null || value === undefined || value === false) node.removeAttribute(name);
    else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : String(value));
  }

  // Writing the same text again would make a screen reader say it again.
  function setText(node, text) {
    if (node && node.textContent !== text) node.textContent = text;
  }

  function show(node, visible) {
    if (node) node.hidden = !visible;
  }

  // Replaces the children only when `key` says that something changed.
  function fill(node, key, make) {
    if (node.dataset.key === key) return;
    node.dataset.key = key;
    node.replaceChildren(...make());
  }

  // Names such as gpu-node-4 stay in one piece at the end of a line.
  const inPieces = (text) => text.split(/(\S*-\S*\d\S*)/).map((part, i) => (i % 2 ? el("span", { class: "gp-nw" }, part) : part));

  function setWords(node, text) {
    if (node && node.textContent !== text) node.replaceChildren(...inPieces(text));
  }

  const PATHS = {
    play: "M5 3l9 5-9 5z",
    clock: "M8 4.5V8l2.5 1.5M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0z",
    rays: "M8 3v2M8 11v2M3 8h2M11 8h2M4.5 4.5l1.4 1.4M10.1 10.1l1.4 1.4M11.5 4.5l-1.4 1.4M5.9 10.1l-1.4 1.4",
    warning: "M8 6v3.5M8 12v.01M8 2l6.5 11.5h-13z",
    octagon: "M8 4.5V9M8 11.5v.01M5.2 1.5h5.6l3.7 3.7v5.6l-3.7 3.7H5.2l-3.7-3.7V5.2z",
    tick: "M3 8.5l3.2 3L13 5",
    cross: "M4 4l8 8M12 4l-8 8",
    info: "M8 7.5V11M8 5v.01M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0z",
  };

  function icon(name) {
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg"), path = document.createElementNS(space, "path");
    svg.setAttribute("class", "gp-ico");
    svg.setAttribute("viewBox", "0 0 16 16");
    svg.setAttribute("aria-hidden", "true");
    path.setAttribute("d", PATHS[name]);
    svg.append(path);
    return svg;
  }

  function readState(id = "gp-state") {
    const node = document.getElementById(id);
    return node ? JSON.parse(node.textContent) : null;
  }

  // Clock and times ------------------------------------------------------------------

  let offset = 0;
  const clock = {
    set(iso) {
      const server = Date.parse(iso);
      if (Number.isFinite(server)) offset = server - Date.now();
    },
    now: () => Date.now() + offset,
  };

  const pad = (n) => String(n).padStart(2, "0");
  const hhmm = (at) => `${pad(at.getHours())}:${pad(at.getMinutes())}`;
  const midnight = (at) => new Date(at.getFullYear(), at.getMonth(), at.getDate()).getTime();
  const weekday = (at) => new Intl.DateTimeFormat(LOCALE, { weekday: "short" }).format(at);
  const dayMonth = (at) => new Intl.DateTimeFormat(LOCALE, { day: "numeric", month: "short" }).format(at);

  // Days between `at` and today, by the calendar: a day with a clock change has 23 or 25 hours.
  function daysFromToday(at) {
    return Math.round((midnight(at) - midnight(new Date(clock.now()))) / DAY);
  }

  // "14:10" today, "tomorrow 02:10", "Tue 17 Nov 02:10".
  function time(iso) {
    const at = new Date(iso), days = daysFromToday(at);
    if (days === 0) return hhmm(at);
    if (days === 1) return `tomorrow ${hhmm(at)}`;
    if (days === -1) return `yesterday ${hhmm(at)}`;
    return `${weekday(at)} ${dayMonth(at)} ${hhmm(at)}`;
  }

  const endTime = (iso) => (daysFromToday(new Date(iso)) === 0 ? `today ${time(iso)}` : time(iso));
  const atTime = (iso) => (daysFromToday(new Date(iso)) === 0 ? `at ${time(iso)}` : time(iso));
  const seconds = (iso) => {
    const at = new Date(iso);
    return `${daysFromToday(at) ? `${dayMonth(at)} ` : ""}${hhmm(at)}:${pad(at.getSeconds())}`;
  };

  function zone() {
    const parts = new Intl.DateTimeFormat(LOCALE, { timeZoneName: "short" }).formatToParts(new Date(clock.now()));
    return parts.find((part) => part.type === "timeZoneName")?.value ?? "your time";
  }

  // "40 min", "1 h 35 min", "3 days".
  function duration(ms) {
    const minutes = Math.max(1, Math.round(ms / MINUTE));
    if (minutes < 60) return `${minutes} min`;
    if (minutes >= 48 * 60) return `${Math.round(minutes / 1440)} days`;
    const rest = minutes % 60;
    return `${Math.floor(minutes / 60)} h${rest ? ` ${rest} min` : ""}`;
  }

  // "2 h 14 m", "13 min", under ten minutes "4:52". Rounded up to the minute, so that it never shows less than is left.
  function countdown(ms) {
    const left = Math.max(0, Math.ceil(ms / 1000));
    if (left < 600) return `${Math.floor(left / 60)}:${pad(left % 60)}`;
    const minutes = Math.ceil(left / 60);
    return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${pad(minutes % 60)} m`;
  }

  function ago(iso) {
    const ms = clock.now() - Date.parse(iso);
    if (ms < 2 * MINUTE) return "just now";
    if (ms < HOUR) return `${Math.round(ms / MINUTE)} minutes ago`;
    if (ms < 2 * HOUR) return "1 hour ago";
    if (ms < DAY) return `${Math.floor(ms / HOUR)} hours ago`;
    const days = Math.floor(ms / DAY);
    return days === 1 ? "1 day ago" : `${days} days ago`;
  }

  // Words ----------------------------------------------------------------------------

  const plain = (number) => String(Number(Number(number).toPrecision(6)));
  const round = (value) => Math.round(value * 100) / 100; // an end in whole seconds makes hours that are none
  const hours = (value) => (value < 1 ? `${Math.round(value * 60)} min` : `${plain(round(value))} h`);
  const plural = (n, one, many = `${one}s`) => `${plain(n)} ${n === 1 ? one : many}`;

  function ordinal(n) {
    const tail = n % 100 >= 11 && n % 100 <= 13 ? "th" : { 1: "st", 2: "nd", 3: "rd" }[n % 10] ?? "th";
    return `${n}${tail}`;
  }

  // `perNode` is known on the form; elsewhere the number of nodes says it.
  function gpus(type, count, perNode = 0) {
    if (!count) return `CPU server (${type})`;
    if (perNode && count > perNode) return `${plural(count / perNode, "node")} of ${perNode} × ${type}`;
    return `${count} × ${type}`;
  }

  function gpusOf(reservation) {
    const nodes = reservation.nodes.length || reservation.planned_nodes?.length || 1;
    return gpus(reservation.gpu_type, reservation.gpu_count, nodes > 1 ? reservation.gpu_count / nodes : 0);
  }

  const onNodes = (nodes) => (nodes.length === 1 ? nodes[0] : nodes.length ? `${nodes.length} nodes` : "");

  function does_not_fit({ nodes_up: up, nodes }) {
    if (up >= nodes) return `Does not fit: there ${nodes === 1 ? "is 1 node" : `are ${nodes} nodes`}.`;
    if (nodes === 1) return "Does not fit now: the only node is down.";
    return `Does not fit now: ${up} of ${nodes} nodes ${up === 1 ? "is" : "are"} up.`;
  }

  const NTH = ["", "first", "second", "third", "fourth"];
  const dot = (text) => (/[.!?]$/.test(text) ? text : `${text}.`);

  function promised_to_others(r) {
    const from = r.promised_from && Date.parse(r.promised_from) > clock.now() ? ` from ${time(r.promised_from)}` : "";
    const then = r.promised_node === r.node ? "it is free again" : `${r.node} is free`;
    return `${r.promised_node} is promised${from || " to someone in the queue"}; ${then} ${atTime(r.at)}.`;
  }

  const closedWords = (type, note) => `${type} is closed for maintenance${note ? `: ${dot(note)}` : "."}`;

  const REASONS = {
    needs_free_on_one_node: (r) => `Needs ${r.gpus} free on one node; ${r.node} is the first, ${atTime(r.at)}.`,
    needs_empty_nodes: (r) => `Needs ${r.nodes} empty nodes; the ${NTH[r.nodes] ?? "last"} is empty ${atTime(r.at)}.`,
    needs_free_slot: (r) => `All slots are taken; ${r.node} has one ${atTime(r.at)}.`,
    promised_to_others,
    does_not_fit,
    held_outside: () => "Programs outside the portal use these GPUs; the end is not known.",
    maintenance: (r) => `${closedWords(r.gpu_type, r.note)} Your place is kept.`,
    over_quota: (r) => `${dot(r.message)} Your place is kept.`,
    disk_busy: (r) => `Disk ${r.disk} is still attached to another reservation.`,
  };

  const reason = (code) => (code && Object.hasOwn(REASONS, code.code) ? REASONS[code.code](code) : "");

  // Codes that the portal itself writes as the cause of an end; people's own words are shown as they are.
  const CAUSES = {
    asked_for: "",
    portal_restarted: "the portal was restarted",
    time_up: "time was up",
    server_stopped: "the server was stopped",
    server_shut_down: "the server was shut down",
    image_not_found: "the image was not found, or the portal may not read it",
    disk_not_attached: "the disk could not be attached",
    no_answer: "the server did not answer",
    start_timeout: "the server did not start in time",
    exited: "the server ended by itself",
    out_of_memory: "memory ran out, and the system ended the server",
    killed: "the server was killed, as happens when memory runs out",
    evicted: "the server was evicted from its node",
    node_lost: "the node was lost, and the programs with it",
    refused_by_hub: "the hub refused to start the server",
    quota: "it is over the quota",
    not_offered: "the GPU type is not offered any more",
    not_picked_up: "nobody picked it up",
    waited_too_long: "it waited too long",
    path_too_long: "a path is too long for this machine",
    no_space: "no space is left",
    no_account: "this machine has no account for it",
    unknown: "the cause is not known",
  };

  function cause(code) {
    if (!code) return "";
    if (Object.hasOwn(CAUSES, code)) return CAUSES[code];
    return /^[a-z0-9]+(_[a-z0-9]+)+$/.test(code) ? code.replaceAll("_", " ") : code.replace(/\.$/, "");
  }

  // Starts, ends and messages ----------------------------------------------------------

  const REWRITE_FROM = 2 * MINUTE; // a forecast that moved by less stays as it was told
  const forecasts = new Map();

  function steady(key, next) {
    const last = forecasts.get(key);
    const moved = !last || !next || Math.abs(Date.parse(next) - Date.parse(last)) >= REWRITE_FROM;
    if (moved) forecasts.set(key, next);
    return forecasts.get(key);
  }

  const isAhead = (iso) => Boolean(iso) && Date.parse(iso) > clock.now();

  // "about 13:30, no later than 14:10": the forecast, then the promise. Where they are the same, the promise.
  function aboutAndBy(about, by, tie = " ") {
    const promise = isAhead(by) ? `no${tie}later${tie}than${tie}${time(by)}` : "";
    if (!isAhead(about)) return promise && about ? `any moment, ${promise}` : promise;
    if (!promise) return `about ${time(about)}`;
    return Date.parse(about) >= Date.parse(by) || time(about) === time(by) ? promise : `about ${time(about)}, ${promise}`;
  }

  const MOVED = {
    node_down: (d, at) => `${d.node} went down ${at}`,
    node_cordoned: (d, at) => `${d.node} was taken out of use ${at}`,
    used_from_outside: (d, at) => `${d.node} is used from outside the portal since ${at.replace(/^at /, "")}`,
    still_ending: (d) => `what ran on ${d.node} has not ended in time`,
    portal_was_late: () => "the portal was not there in time",
    maintenance: (d, at) => `${d.gpu_type} was closed for maintenance ${at}`,
    over_quota: () => "your limit was lowered",
    disk_busy: () => "its disk is still attached elsewhere",
  };

  const movedCause = (detail, at) => (Object.hasOwn(MOVED, detail.code) ? MOVED[detail.code](detail, atTime(at)) : "there is less room now");
  // Names of nodes and types stay as they are, also at the beginning of a sentence.
  const capital = (text) => (/^\S*\d/.test(text) ? text : `${text[0]?.toUpperCase() ?? ""}${text.slice(1)}`);

  // The message that a promise was broken, with what holds now.
  function movedWords(notice, r) {
    const broken = notice.detail.old ? `${time(notice.detail.old)} cannot be kept` : "the promised time cannot be kept";
    const now = r.no_later_than ? `Now: ${aboutAndBy(r.expected_start, r.no_later_than) || "any moment"}.` : "A new time is not known yet.";
    return [`${capital(movedCause(notice.detail, notice.due_at))}, so ${broken}.`, now];
  }

  const lastOf = (notices, test) => (notices ?? []).filter(test).at(-1) ?? null;
  const brokenPromise = (r, notices) => (isWaiting(r) ? lastOf(notices, (one) => one.kind === "promise_moved") : null);
  const WARNINGS = ["ends_in_30", "ends_in_15", "ends_in_5"];

  function warning(r, notices) {
    if (r.status !== "active" || r.ending || left(r) <= 0) return null;
    return lastOf(notices, (one) => WARNINGS.includes(one.kind) && Date.parse(one.ends_at) === Date.parse(r.expires_at));
  }

  // The number stands apart from what is announced: a screen reader is not to be told every minute.
  function warningWords(r) {
    const minutes = Math.max(1, Math.ceil(left(r) / MINUTE)), files = r.disk ? `; files on disk ${r.disk} stay.` : ". Files are gone then.";
    return [`${plural(minutes, "minute")} left.`, `${r.name} ends ${atTime(r.expires_at)}. Programs stop then${files}`];
  }

  // What stands in the way of a later end.
  const BOUNDS = {
    promised: (b) => `from ${time(b.at)} these GPUs are promised to someone in the queue.`,
    total_hours: (b) => `${plain(b.limit)} h in all is the limit.`,
    gpu_hours: (b) => `your limit is ${plain(b.limit)} GPU-hours, counted over the last ${plain(b.window_days)} days, and ${plain(b.used)} are counted.`,
    maintenance: (b) => closedWords(b.gpu_type, ""),
  };

  const boundWords = (bound) => (bound && Object.hasOwn(BOUNDS, bound.code) ? BOUNDS[bound.code](bound) : "");

  // Cells ----------------------------------------------------------------------------

  const CELL_WORDS = [["f", "free"], ["m", "yours"], ["o", "others'"], ["p", "promised"], ["d", "down"]];

  function cellsLabel(name, cells) {
    const counted = CELL_WORDS.map(([mark, word]) => [[...cells].filter((cell) => cell === mark).length, word]);
    return `${name}: ${counted.filter(([n]) => n).map(([n, word]) => `${n} ${word}`).join(", ")}`;
  }

  // Changes the cells that changed; they keep their places. `picked` cells are what is being asked for.
  function drawCells(row, name, cells, picked = 0) {
    let left = picked;
    while (row.childElementCount > cells.length) row.lastElementChild.remove();
    [...cells].forEach((mark, place) => {
      const cell = row.children[place] ?? row.appendChild(el("i"));
      const look = `gp-c ${mark}${mark === "f" && left-- > 0 ? " pick" : ""}`;
      if (cell.className !== look) cell.className = look;
    });
    setAttr(row, "aria-label", cellsLabel(name, cells) + (picked ? `, ${picked} asked for` : ""));
  }

  function nodeRow(tag, name) {
    const cells = el("span", { class: "gp-cells", role: "img" });
    return el(tag, { class: "gp-node", "data-node": name }, el("span", { class: "gp-nn", title: name }, name), cells);
  }

  // `picks` tells how many cells of a node are asked for.
  function drawNodes(list, nodes, picks = new Map()) {
    const known = new Map($$(".gp-node", list).map((row) => [row.dataset.node, row]));
    const tag = list.matches("ul") ? "li" : "span"; // inside a label only phrases may stand
    const rows = nodes.map((node) => known.get(node.name) ?? nodeRow(tag, node.name));
    if (rows.some((row, i) => list.children[i] !== row) || list.childElementCount !== rows.length) list.replaceChildren(...rows);
    nodes.forEach((node, i) => drawCells($(".gp-cells", rows[i]), node.name, node.cells, picks.get(node.name)));
  }

  const freeWords = (type) => `of ${type.total}${type.is_cpu ? " slots" : ""} free`;

  function specWords(type) {
    const parts = type.is_cpu ? ["No GPU", `${type.per_node} people per node`] : [`${type.gpu_memory_gb} GB`, `${type.per_node} per node`];
    if (!type.is_cpu && !type.gpu_memory_gb) parts.shift();
    if (type.down) parts.push(`${type.down} down`);
    return parts.join(", ");
  }

  // Status ---------------------------------------------------------------------------

  const SOON = 30 * MINUTE;
  const isWaiting = (r) => r.status === "pending" || r.status === "queued";
  const isOpen = (r) => isWaiting(r) || r.status === "preparing" || r.status === "active";
  const left = (r) => Date.parse(r.expires_at) - clock.now();

  function status(r) {
    if (isOpen(r) && r.ending) return { look: "prep", icon: "rays", word: "Ending" };
    switch (r.status) {
      case "pending": return { look: "wait", icon: "clock", word: "Filed" };
      case "queued": return { look: "wait", icon: "clock", word: r.queue_position ? `Queued, ${place(r)}` : "Queued" };
      case "preparing": return { look: "prep", icon: "rays", word: "Preparing" };
      case "active": return left(r) <= SOON ? { look: "low", icon: "warning", word: "Ends soon" } : { look: "on", icon: "play", word: "Active" };
      case "expired": return { look: "", icon: "tick", word: "Expired" };
      case "cancelled": return { look: "", icon: "cross", word: "Cancelled" };
      case "failed": return { look: "fail", icon: "octagon", word: "Failed" };
      default: return { look: "", icon: "info", word: String(r.status) };
    }
  }

  function place(r) {
    const last = Math.max(r.queue_position, r.queue_length || 0);
    return last > 1 ? `${ordinal(r.queue_position)} of ${last}` : ordinal(r.queue_position);
  }

  function drawPill(node, r) {
    const { look, icon: shape, word } = status(r);
    node.className = `gp-st ${look}`.trim();
    fill(node, `${shape} ${word}`, () => [icon(shape), word]);
  }

  const isPerson = (actor) => Boolean(actor) && !["controller", "hub", "portal"].includes(actor);

  // Who ended it, in the reader's eyes.
  function endedBy(r, mine) {
    const when = atTime(r.reservation_ended), why = cause(r.end_reason);
    const tail = why ? `: ${why}` : "";
    if (!isPerson(r.end_actor)) return `Ended ${when}${tail}`;
    if (r.end_actor !== r.user_id) return `Ended by admin ${r.end_actor} ${when}${tail}`;
    const who = mine ? "You" : r.user_id;
    return r.preparing_at ? `${who} ended it ${when}` : `${who} left the queue ${when}`;
  }

  // The one sentence of a reservation.
  function sentence(r, mine = true) {
    if (isOpen(r) && r.ending) return "Ending. Programs are being stopped.";
    switch (r.status) {
      case "pending": return "Filed. Looking for a place.";
      case "queued": return startWords(r);
      case "preparing": return r.nodes.length ? `Getting ready on ${onNodes(r.nodes)}` : "Getting ready";
      case "active": return `${countdown(left(r))} left, ends ${endTime(r.expires_at)}`;
      case "expired": return `Ended ${atTime(r.reservation_ended)}${r.launched_at ? `, after ${duration(Date.parse(r.reservation_ended) - Date.parse(r.launched_at))}` : ""}`;
      case "cancelled": return endedBy(r, mine);
      case "failed": return failedWords(r);
      default: return "";
    }
  }

  // A start that should have come by now is not told as a time in the past.
  function startWords(r) {
    const words = aboutAndBy(steady(r.reservation_id, r.expected_start), r.no_later_than);
    if (words) return `Starts ${words}`;
    return r.expected_start || r.no_later_than ? "Starts any moment" : "Queued. The start time is not known yet.";
  }

  function failedWords(r) {
    const why = cause(r.failure_reason || r.end_reason) || "the cause is not known";
    return r.launched_at ? `It stopped ${atTime(r.reservation_ended)}: ${why}` : `It could not start: ${why}`;
  }

  // Live connection ------------------------------------------------------------------

  // A login by cookie is accepted from a script only together with this token. It is read anew each time, because
  // logging in again in another tab changes it.
  function token() {
    const found = document.cookie.split("; ").find((pair) => pair.startsWith("_xsrf="));
    return found ? found.slice("_xsrf=".length).replace(/^"|"$/g, "") : window.jhdata?.xsrf_token ?? "";
  }

  const isOurs = (url) => new URL(url, location.href).origin === location.origin;

  // An EventSource cannot send headers, so there it goes into the address, as the hub's own pages do it.
  function withToken(url) {
    const whole = new URL(url, location.href);
    if (isOurs(url) && token()) whole.searchParams.set("_xsrf", token());
    return whole.href;
  }

  function withValues(url, values) {
    const whole = new URL(url, location.href);
    for (const [name, value] of Object.entries(values)) whole.searchParams.set(name, String(value));
    return whole.href;
  }

  const BANNER_AFTER = 15_000, LONGEST_PAUSE = 30, POLL_EVERY = 5_000, HIDDEN_POLL = 15_000, HIDDEN_AFTER = 30_000;
  const MOST_SILENCE = 45_000; // the server says something at least every 15 s; longer means that the line is dead
  const STREAM_TRIES = 3; // then the state is fetched as well, in case something on the way swallows streams

  // Feeds `onState` from the event stream; falls back to polling, backs off when nothing answers.
  class Feed {
    constructor({ feedUrl, stateUrl, onState, banner }) {
      Object.assign(this, { feedUrl, stateUrl, onState, banner });
      this.failures = 0;
      this.lastGood = clock.now();
      this.lostSince = null;
      this.retryAt = null;
      this.timer = null;
      this.source = null;
      this.loggedOut = false;
      this.polls = 0;
      setInterval(() => { this.checkSilence(); this.drawBanner(); }, 1000);
      addEventListener("online", () => this.retryNow());
      addEventListener("pagehide", () => this.close());
      addEventListener("pageshow", (event) => { if (event.persisted) this.retryNow(); });
      document.addEventListener("visibilitychange", () => this.onVisibility());
      this.open();
    }

    open() {
      this.close();
      if (!window.EventSource || !this.feedUrl) { this.poll(); return; }
      const source = (this.source = new EventSource(withToken(this.feedUrl)));
      this.heardAt = Date.now();
      source.addEventListener("state", (event) => this.take(JSON.parse(event.data)));
      source.addEventListener("error", () => { if (this.source === source) this.failed(); });
    }

    checkSilence() {
      if (this.source && Date.now() - this.heardAt > MOST_SILENCE) this.failed();
    }

    // The same figures, asked for in another way: what is shown stays until they come.
    ask(values) {
      for (const name of ["feedUrl", "stateUrl"]) if (this[name]) this[name] = withValues(this[name], values);
      this.retryNow();
    }

    close() {
      clearTimeout(this.timer);
      this.retryAt = null;
      this.source?.close();
      this.source = null;
    }

    take(state) {
      this.failures = 0;
      this.lostSince = null;
      this.loggedOut = false;
      this.heardAt = Date.now();
      clock.set(state.now);
      this.lastGood = clock.now();
      this.drawBanner();
      this.onState(state);
    }

    failed() {
      this.close();
      this.failures += 1;
      this.lostSince ??= clock.now();
      if (this.failures >= STREAM_TRIES && this.stateUrl) this.poll();
      else this.again();
    }

    again() {
      const pause = Math.min(2 ** (this.failures - 1), LONGEST_PAUSE) * (0.75 + Math.random() / 2);
      this.later(pause * 1000);
    }

    later(ms) {
      clearTimeout(this.timer);
      this.retryAt = clock.now() + ms;
      this.timer = setTimeout(() => this.open(), ms);
    }

    async poll() {
      this.close();
      const answer = await fetchState(this.stateUrl);
      if (this.source) return; // the stream came back meanwhile
      if (answer.state) {
        this.take(answer.state);
        this.pollLater(document.hidden ? HIDDEN_POLL : POLL_EVERY);
      } else if (answer.loggedOut) {
        this.loggedOut = true;
        this.drawBanner();
      } else {
        this.failures = Math.max(1, this.failures + (window.EventSource ? 0 : 1));
        this.lostSince ??= clock.now();
        this.again();
      }
    }

    pollLater(ms) {
      clearTimeout(this.timer);
      this.polls += 1;
      const tryStream = !document.hidden && this.polls % 12 === 0;
      this.timer = setTimeout(() => (tryStream ? this.open() : this.poll()), ms);
    }

    retryNow() {
      clearTimeout(this.timer);
      this.open();
    }

    // Browsers allow six connections to one address: pages that nobody looks at give theirs back.
    onVisibility() {
      clearTimeout(this.hiding);
      if (document.hidden) this.hiding = setTimeout(() => this.poll(), HIDDEN_AFTER);
      else if (!this.source) this.retryNow();
    }

    get isLost() {
      return this.lostSince !== null && clock.now() - this.lostSince >= BANNER_AFTER;
    }

    drawBanner() {
      if (!this.banner) return;
      show(this.banner, this.isLost || this.loggedOut);
      if (this.banner.hidden) return;
      fill(this.banner, "made", () => this.makeBanner());
      setText($("[data-since]", this.banner), `This page shows ${time(this.lastGood)}.`);
      setText($("[data-next]", this.banner), this.loggedOut ? "Your login has ended: load the page again to log in." : this.nextTry());
    }

    nextTry() {
      const wait = this.retryAt ? Math.ceil((this.retryAt - clock.now()) / 1000) : 0;
      return wait > 0 ? `Trying again in ${wait} s.` : "Trying again.";
    }

    makeBanner() {
      const again = el("button", { class: "gp-btn small", type: "button" }, "Try now");
      again.addEventListener("click", () => (this.loggedOut ? location.reload() : this.retryNow()));
      // The seconds tick in a part of their own, outside of what is announced.
      const words = el("div", { class: "gp-grow" },
        el("b", { "data-since": "", role: "status" }), " ",
        el("span", { "data-next": "" }), " Your servers keep running.");
      return [icon("warning"), words, again];
    }
  }

  async function fetchState(url) {
    const headers = { Accept: "application/json", ...(isOurs(url) ? { "X-XSRFToken": token() } : {}) };
    try {
      const answer = await fetch(url, { headers, redirect: "manual", cache: "no-store" });
      if (answer.type === "opaqueredirect" || answer.status === 401 || answer.status === 403) return { loggedOut: true };
      return answer.ok ? { state: await answer.json() } : {};
    } catch {
      return {};
    }
  }

  // Theme ----------------------------------------------------------------------------

  const stored = () => { try { return localStorage.getItem(THEME_KEY); } catch { return null; } };
  const systemTheme = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

  function applyTheme() {
    const theme = stored();
    document.documentElement.dataset.bsTheme = theme === "dark" || theme === "light" ? theme : systemTheme();
  }

  function switchTheme() {
    const theme = document.documentElement.dataset.bsTheme === "dark" ? "light" : "dark";
    try { localStorage.setItem(THEME_KEY, theme); } catch { /* private window: it lasts as long as the page */ }
    document.documentElement.dataset.bsTheme = theme;
  }

  // On hub pages the hub's own script does this.
  function ownTheme() {
    const buttons = $$("[data-theme-toggle]");
    if (!buttons.length) return;
    applyTheme();
    buttons.forEach((button) => button.addEventListener("click", switchTheme));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
    addEventListener("storage", (event) => { if (event.key === THEME_KEY) applyTheme(); });
  }

  ownTheme();

  window.gpudev = {
    $, $$, el, setAttr, setText, setWords, inPieces, show, fill, icon, readState, clock, time, endTime, atTime, seconds, zone, duration,
    countdown, ago, plain, hours, plural, ordinal, gpus, gpusOf, onNodes, reason, cause, drawNodes, freeWords,
    specWords, isWaiting, isOpen, left, drawPill, place, isPerson, sentence, Feed, steady, isAhead, aboutAndBy, movedCause,
    movedWords, brokenPromise, warning, warningWords, boundWords, closedWords, capital, withValues, round,
  };
})();
