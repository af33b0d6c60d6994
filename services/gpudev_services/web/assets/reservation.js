/* One reservation: the one sentence, how far it is, what happened and what comes next. */
(() => {
  "use strict";

  const { $, el, setAttr, setText, show, fill, icon, clock, time, endTime, countdown, cause, isOpen, isWaiting, hours } = window.gpudev;
  const page = $("[data-reservation]");
  if (!page) return;

  let state = window.gpudev.readState();
  let sawItWait = false;
  let isDecided = false; // whether to open JupyterLab is decided once, when it becomes active

  const runs = (r) => r.status === "active" && !r.ending;
  const ms = (iso) => Date.parse(iso);

  // The sentence ---------------------------------------------------------------------

  // The countdown stands in a part of its own, so that a screen reader is not told every second.
  function drawSentence(r) {
    const tick = $("[data-tick]");
    show(tick, runs(r));
    if (runs(r)) setText(tick, `${countdown(window.gpudev.left(r))} left, `);
    setText($("[data-big]"), runs(r) ? `ends ${endTime(r.expires_at)}` : window.gpudev.sentence(r, state.is_owner));
    const sub = subline(r);
    window.gpudev.setWords($("[data-sub]"), sub);
    show($("[data-sub]"), sub !== "");
  }

  function subline(r) {
    if (r.ending && isOpen(r)) return r.disk ? `Disk ${r.disk} is kept.` : "";
    switch (r.status) {
      case "queued": return [r.queue_position ? `You are ${window.gpudev.place(r)} for ${r.gpu_type}.` : "", window.gpudev.reason(r.reason)].filter(Boolean).join(" ");
      case "preparing": return [stepWords(r.step), state.is_owner ? "JupyterLab opens by itself." : ""].filter(Boolean).join(" ");
      case "active": return `Started ${time(r.launched_at)}.${r.disk ? "" : " No disk: files are gone at the end."}`;
      case "pending": return "";
      default: return endNote(r);
    }
  }

  const STEPS = { starting_server: "Starting the server.", waiting_for_hub: "Waiting for the hub." };

  function stepWords(step) {
    if (!step) return "";
    if (Object.hasOwn(STEPS, step)) return STEPS[step];
    const words = step.replaceAll("_", " ");
    return `${words[0].toUpperCase()}${words.slice(1)}${/[.!?]$/.test(words) ? "" : "."}`;
  }

  function endNote(r) {
    const parts = [];
    if (r.disk) parts.push(`Disk ${r.disk} is free again.`);
    if (r.gpu_count) parts.push(`${window.gpudev.plain(usedHours(r))} GPU-hours were used.`);
    return parts.join(" ");
  }

  function usedHours(r) {
    if (!r.launched_at || !r.reservation_ended) return 0;
    return Math.round(r.gpu_count * (ms(r.reservation_ended) - ms(r.launched_at)) / 3_600_000 * 10) / 10;
  }

  // The bar --------------------------------------------------------------------------

  function spanOf(r) {
    if (runs(r)) return { from: r.launched_at, fromWord: "started", to: r.expires_at, toWord: "ends" };
    if (r.status === "queued" && r.expected_start && ms(r.expected_start) > clock.now()) return { from: r.created_at, fromWord: "filed", to: r.expected_start, toWord: "about" };
    return null;
  }

  function drawSpan(r) {
    const span = spanOf(r), box = $("[data-span]");
    show(box, Boolean(span));
    if (!span) return;
    const share = Math.min(1, Math.max(0, (clock.now() - ms(span.from)) / (ms(span.to) - ms(span.from)))) * 100;
    const mark = $("[data-now]");
    $("[data-done]").style.width = `${share}%`;
    mark.style.left = `${share}%`;
    mark.classList.toggle("l", share < 12);
    mark.classList.toggle("r", share > 88);
    setText(mark, `now ${time(clock.now())}`);
    setText($("[data-from]"), time(span.from));
    setText($("[data-from-word]"), span.fromWord);
    setText($("[data-to]"), time(span.to));
    setText($("[data-to-word]"), span.toWord);
    setAttr(box, "aria-label", `${span.fromWord} ${time(span.from)}, now ${time(clock.now())}, ${span.toWord} ${time(span.to)}`);
  }

  // Actions --------------------------------------------------------------------------

  function drawActions(r) {
    const lab = $("[data-lab]"), again = $("[data-again]"), end = $("[data-end]");
    show(lab, Boolean(r.lab_url) && state.is_owner);
    if (r.lab_url) setAttr(lab, "href", r.lab_url);
    show(again, !isOpen(r) && state.is_owner);
    setAttr(again, "href", againUrl(r));
    if (!end) return;
    const canEnd = isOpen(r) && !r.ending;
    show(end, canEnd);
    if (!canEnd) { end.open = false; return; }
    const word = isWaiting(r) ? "Leave the queue" : r.status === "preparing" ? "Cancel" : "End";
    setText($("[data-end-word]"), word);
    setText($("[data-end-button]"), isWaiting(r) ? "Leave the queue" : "End now");
    const [question, answer] = endWords(r);
    fill($("[data-end-text]"), question + answer, () => [el("b", {}, question), ` ${answer}`]);
  }

  function endWords(r) {
    if (isWaiting(r)) return [`Leave the queue with ${r.name}?`, `${r.queue_position ? `Your place (${window.gpudev.place(r)})` : "Your place"} is given up. Nothing else changes.`];
    const disk = r.disk ? `Disk ${r.disk} is kept.` : "Files are gone.";
    const rest = r.expires_at ? ` The remaining ${countdown(Math.max(window.gpudev.left(r), 0))} go back to everyone.` : "";
    return [`End ${r.name} now?`, `Running programs stop. ${disk}${rest}`];
  }

  function againUrl(r) {
    const values = { gpu_type: r.gpu_type, gpu_count: r.gpu_count, hours: r.duration_hours, disk: r.disk, name: r.request?.name ?? "" };
    const query = new URLSearchParams(Object.entries(values).map(([name, value]) => [`opt-${name}`, String(value)]));
    return `${page.dataset.new}?${query}`;
  }

  // Timeline -------------------------------------------------------------------------

  const FROM = { browser: "from the browser", rest: "through the hub's API", api: "through the API", cli: "from a terminal" };
  const by = (actor) => (!window.gpudev.isPerson(actor) ? "" : actor === state.reservation.user_id && state.is_owner ? "by you" : `by ${actor}`);
  const join = (...parts) => parts.filter(Boolean).join(", ");

  const EVENTS = {
    filed: (e) => ({ title: "Filed", text: join(FROM[e.detail.from], by(e.actor)) }),
    queued: () => ({ title: "Queued", text: "" }),
    preparing: (e, r) => ({ title: "GPUs assigned", text: `${window.gpudev.gpusOf(r)}${e.detail.nodes?.length ? ` on ${e.detail.nodes.join(", ")}` : ""}` }),
    active: (e, r) => ({ title: "Active", text: `the ${hours(r.duration_hours)} started` }),
    ending: (e) => ({ title: "Ending", text: join(by(e.actor), cause(e.detail.reason)) }),
    expired: () => ({ title: "Ended", text: "time was up" }),
    cancelled: (e) => ({ title: "Cancelled", text: join(by(e.actor), cause(e.detail.reason)) }),
    failed: (e) => ({ title: "Failed", text: cause(e.detail.reason), bad: true }),
    restarted: (e) => ({ title: "Starting again", text: cause(e.detail.reason) }),
    start_failed: (e) => ({ title: `Start failed${e.detail.attempt ? `, attempt ${e.detail.attempt}` : ""}`, text: cause(e.detail.reason), bad: true }),
  };

  function eventStep(event, r) {
    const known = Object.hasOwn(EVENTS, event.event);
    const made = known ? EVENTS[event.event]({ ...event, detail: event.detail ?? {} }, r) : { title: readable(event.event), text: cause(event.detail?.reason) };
    if (event.event === "preparing" && !r.gpu_count) made.title = "Slot assigned";
    return { ...made, at: window.gpudev.seconds(event.at), look: made.bad ? "bad" : "done" };
  }

  const readable = (name) => `${name[0]?.toUpperCase() ?? ""}${name.slice(1).replaceAll("_", " ")}`;

  function stepsAhead(r) {
    if (r.ending) return [{ at: "next", title: "Ended", text: r.disk ? `disk ${r.disk} is free again, GPUs go back` : "GPUs go back" }];
    const work = { at: "then", title: "You can work", text: `the ${hours(r.duration_hours)} start here, not before` };
    const assigned = { at: r.expected_start && ms(r.expected_start) > clock.now() ? `about ${time(r.expected_start)}` : "next", title: r.gpu_count ? "GPUs assigned" : "Slot assigned", text: window.gpudev.gpusOf(r) };
    switch (r.status) {
      case "pending": case "queued": return [assigned, { at: "then", title: r.disk ? "Disk and server" : "Server", text: "a few seconds" }, work];
      case "preparing": return [{ ...work, at: "next" }];
      case "active": return [{ at: time(r.expires_at), title: "End", text: `programs stop, ${r.disk ? `disk ${r.disk} is kept, ` : "files are gone, "}GPUs go back` }];
      default: return [];
    }
  }

  function timeline() {
    const r = state.reservation, past = state.events.map((event) => eventStep(event, r));
    const last = past.at(-1);
    if (last?.look === "bad" && isOpen(r)) past.push({ at: "now", title: "Trying again", text: "", look: "cur" });
    else if (last && isOpen(r)) {
      last.look = "cur";
      if (r.status === "queued" && !r.ending) Object.assign(last, { title: r.queue_position ? `Queued, ${window.gpudev.place(r)}` : "Queued", text: window.gpudev.reason(r.reason) });
    }
    return [...past, ...(isOpen(r) ? stepsAhead(r).map((step) => ({ ...step, look: "todo" })) : [])];
  }

  const MARKS = { done: "tick", bad: "cross" };
  const SPOKEN = { done: "", bad: "", cur: "Now: ", todo: "Ahead: " };

  function drawTimeline() {
    const steps = timeline();
    fill($("[data-timeline]"), JSON.stringify(steps), () => steps.map((step) => el("li", { class: step.look, "aria-current": step.look === "cur" ? "step" : null },
      el("span", { class: "k", "aria-hidden": "true" }, MARKS[step.look] ? icon(MARKS[step.look]) : null),
      el("span", { class: "at" }, step.at),
      el("div", { class: "t" }, el("b", {}, SPOKEN[step.look] ? el("span", { class: "gp-hid" }, SPOKEN[step.look]) : null, step.title), ...window.gpudev.inPieces(step.text)))));
  }

  // Details and title ----------------------------------------------------------------

  function drawDetails(r) {
    window.gpudev.drawPill($("[data-pill]"), r);
    setText($("[data-gpus]"), `${window.gpudev.gpusOf(r)}${r.gpu_count > 1 && r.nodes.length === 1 ? ", one node" : ""}`);
    setText($("[data-node-word]"), r.nodes.length > 1 ? "Nodes" : "Node");
    setText($("[data-nodes]"), r.nodes.join(", ") || (isWaiting(r) ? "not chosen yet" : "none"));
    setText($("[data-counts]"), countsAs(r));
    setText($("[data-what]"), `${window.gpudev.gpusOf(r)} for ${hours(r.duration_hours)}, ${r.disk ? `disk ${r.disk}` : "no disk"}${state.is_owner ? "" : `, reserved by ${r.user_id}`}. Times in ${window.gpudev.zone()}.`);
    show($("[data-close-hint]"), isWaiting(r));
  }

  function countsAs(r) {
    if (!r.gpu_count) return "0 GPU-hours";
    if (!isOpen(r)) return `${window.gpudev.plain(usedHours(r))} GPU-hours`;
    return `${window.gpudev.plain(r.gpu_count * r.duration_hours)} GPU-hours`;
  }

  function titleWords(r) {
    if (r.ending && isOpen(r)) return "Ending";
    switch (r.status) {
      case "pending": return "Filed";
      case "queued": return r.expected_start && ms(r.expected_start) > clock.now() ? `Starts about ${time(r.expected_start)}` : "Queued";
      case "preparing": return "Preparing";
      case "active": return sawItWait && document.hidden ? "Ready" : `${countdown(Math.max(0, window.gpudev.left(r)))} left`;
      default: return readable(r.status);
    }
  }

  function drawTitle(r) {
    const title = `${titleWords(r)} · ${r.name}`;
    if (document.title !== title) document.title = title;
  }

  // JupyterLab opens by itself for somebody who watched it wait, and only in a page they look at.
  function openWhenReady(r) {
    if (isWaiting(r) || (r.status === "preparing" && !r.ending)) sawItWait = true;
    if (!runs(r) || !r.lab_url || !state.is_owner || !sawItWait || isDecided) return;
    isDecided = true;
    const isBusy = $("[data-end]")?.open; // about to end it: not the moment to be taken away
    if (!document.hidden && !isBusy) location.assign(r.lab_url);
  }

  function tick() {
    const r = state.reservation;
    drawSentence(r);
    drawSpan(r);
    drawTitle(r);
    window.gpudev.drawPill($("[data-pill]"), r);
  }

  function draw() {
    const r = state.reservation;
    drawDetails(r);
    drawActions(r);
    drawTimeline();
    tick();
  }

  function start() {
    clock.set(state.now);
    const keep = $("[data-keep]");
    show(keep, true);
    keep?.addEventListener("click", () => { $("[data-end]").open = false; $("[data-end] summary").focus(); });
    $("[data-end] form")?.addEventListener("submit", (event) => {
      const button = $("[data-end-button]");
      if (button.getAttribute("aria-disabled")) event.preventDefault();
      setAttr(button, "aria-disabled", "true");
    });
    addEventListener("pageshow", (event) => { if (event.persisted && keep) setAttr($("[data-end-button]"), "aria-disabled", null); });
    draw();
    openWhenReady(state.reservation);
    if (page.dataset.feed || page.dataset.state) {
      new window.gpudev.Feed({
        feedUrl: page.dataset.feed, stateUrl: page.dataset.state, banner: $("[data-conn]"),
        onState: (next) => { state = next; draw(); openWhenReady(next.reservation); },
      });
    }
    setInterval(tick, 1000);
    setInterval(draw, 20_000);
  }

  start();
})();
