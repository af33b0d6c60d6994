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
      case "preparing": return isRetried(r) ? retryWords(r) : [stepWords(r.step), state.is_owner ? "JupyterLab opens by itself." : ""].filter(Boolean).join(" ");
      case "active": return `Started ${time(r.launched_at)}${earlyWords(r)}.${r.disk ? "" : " No disk: files are gone at the end."}`;
      case "pending": return "";
      default: return endNote(r);
    }
  }

  const isRetried = (r) => r.status === "preparing" && window.gpudev.isAhead(r.retry_at) && Boolean(r.failure_reason);
  const retryWords = (r) => `The last attempt failed: ${cause(r.failure_reason)}. Trying again ${window.gpudev.atTime(r.retry_at)}.`;

  function earlyWords(r) {
    const early = r.no_later_than ? ms(r.no_later_than) - ms(r.preparing_at) : 0;
    return early >= 60_000 ? `, ${window.gpudev.duration(early)} before the promise` : "";
  }

  const STEPS = { starting_server: "Starting the server.", waiting_for_hub: "Waiting for the hub." };

  function stepWords(step) {
    if (!step) return "";
    if (Object.hasOwn(STEPS, step)) return STEPS[step];
    const words = step.replaceAll("_", " ");
    return `${words[0].toUpperCase()}${words.slice(1)}${/[.!?]$/.test(words) ? "" : "."}`;
  }

  function endNote(r) {
    const parts = r.status === "failed" && r.failure_note ? [r.failure_note] : r.disk ? [`Disk ${r.disk} is free again.`] : [];
    if (r.gpu_count) parts.push(`${window.gpudev.plain(usedHours(r))} GPU-hours were used.`);
    return parts.join(" ");
  }

  function usedHours(r) {
    if (!r.launched_at || !r.reservation_ended) return 0;
    return Math.round(r.gpu_count * (ms(r.reservation_ended) - ms(r.launched_at)) / 3_600_000 * 10) / 10;
  }

  // The bar --------------------------------------------------------------------------

  const WARN_AHEAD = 30 * 60_000;

  function spanOf(r) {
    if (runs(r)) {
      const warn = ms(r.expires_at) - WARN_AHEAD;
      return { from: r.launched_at, fromWord: "started", mid: warn > clock.now() ? warn : null, midWord: "warning", to: r.expires_at, toWord: "ends" };
    }
    if (r.status !== "queued") return null;
    const about = window.gpudev.steady(r.reservation_id, r.expected_start), by = r.no_later_than;
    const from = { from: r.created_at, fromWord: "filed" };
    if (window.gpudev.isAhead(by)) return { ...from, mid: window.gpudev.isAhead(about) && time(about) !== time(by) ? about : null, midWord: "about", maybe: true, to: by, toWord: "no later than" };
    return window.gpudev.isAhead(about) ? { ...from, to: about, toWord: "about" } : null;
  }

  const at = (when) => (typeof when === "number" ? when : ms(when));

  function drawSpan(r) {
    const span = spanOf(r), box = $("[data-span]");
    show(box, Boolean(span));
    if (!span) return;
    const whole = at(span.to) - at(span.from);
    const share = (when) => Math.min(1, Math.max(0, (at(when) - at(span.from)) / whole)) * 100;
    const done = share(clock.now()), mark = $("[data-now]");
    $("[data-done]").style.width = `${done}%`;
    mark.style.left = `${done}%`;
    mark.classList.toggle("l", done < 12);
    mark.classList.toggle("r", done > 88);
    setText(mark, `now ${time(clock.now())}`);
    setText($("[data-from]"), time(span.from));
    setText($("[data-from-word]"), span.fromWord);
    setText($("[data-to]"), time(span.to));
    setText($("[data-to-word]"), span.toWord);
    drawMiddle(box, span, span.mid ? share(span.mid) : null);
    const parts = [`${span.fromWord} ${time(span.from)}`, `now ${time(clock.now())}`, span.mid ? `${span.midWord} ${time(span.mid)}` : "", `${span.toWord} ${time(span.to)}`];
    setAttr(box, "aria-label", parts.filter(Boolean).join(", "));
  }

  // The mark between both ends, where its words do not run into theirs.
  const ROOM_LEFT = 70, ROOM_RIGHT = 120;

  function drawMiddle(box, span, share) {
    const mid = $("[data-mid]"), maybe = $("[data-maybe]"), wide = box.clientWidth;
    show(maybe, share !== null && Boolean(span.maybe));
    maybe.style.left = `${share ?? 0}%`;
    maybe.style.width = `${100 - (share ?? 0)}%`;
    show(mid, share !== null && share / 100 * wide > ROOM_LEFT && (1 - share / 100) * wide > ROOM_RIGHT);
    mid.style.left = `${share ?? 0}%`;
    if (share === null) return;
    setText($("[data-mid-time]"), time(span.mid));
    setText($("[data-mid-word]"), span.midWord);
  }

  // Messages: a broken promise, the end that comes near -----------------------------------

  function drawMessages(r) {
    const moved = window.gpudev.brokenPromise(r, state.notices), warning = window.gpudev.warning(r, state.notices);
    show($("[data-moved]"), Boolean(moved));
    if (moved) {
      const [what, now] = window.gpudev.movedWords(moved, r);
      fill($("[data-moved-text]"), what + now, () => [el("b", {}, ...window.gpudev.inPieces(what)), ` ${now}`]);
    }
    show($("[data-warning]"), Boolean(warning));
    if (!warning) return;
    const [left, words] = window.gpudev.warningWords(r), text = $("[data-warning-text]");
    setText($("[data-warning-left]"), left);
    setAttr(text, "role", warning.kind === "ends_in_5" ? "alert" : null);
    setText(text, words);
  }

  // Sooner: what would start now instead ---------------------------------------------------

  const wish = (one, r) => `${window.gpudev.gpus(one.gpu_type, one.gpu_count, one.per_node)}${one.hours === r.duration_hours ? "" : ` for ${hours(one.hours)}`}`;

  function givenUp(one, r) {
    const promise = r.no_later_than ? `no later than ${time(r.no_later_than)}` : "";
    const place = r.queue_position ? `your place (${window.gpudev.place(r)} for ${r.gpu_type})` : "your place";
    if (one.keeps_place) return `You keep ${place}${promise ? ` and the promise (${promise})` : ""}.`;
    return `Given up: ${place}${promise ? ` and the promise (${promise})` : ""}.`;
  }

  function soonerPart(one, r) {
    const hidden = { _xsrf: page.dataset.xsrf, gpu_type: one.gpu_type, gpu_count: one.gpu_count, hours: one.hours };
    const keep = el("button", { class: "gp-btn small", type: "button" }, "Leave it as it is");
    const form = el("form", { class: "gp-pop", method: "post", action: page.dataset.change },
      ...Object.entries(hidden).map(([name, value]) => el("input", { type: "hidden", name, value })),
      el("p", { class: "gp-sm" }, el("b", {}, `Change ${r.name} to ${wish(one, r)}?`), ` ${givenUp(one, r)}`),
      el("div", { class: "gp-row gp-mt3" }, el("button", { class: "gp-btn small", type: "submit" }, "Change it"), keep));
    const summary = el("summary", { class: "gp-btn small" }, icon("play"), `${wish(one, r)} start${one.gpu_count > one.per_node && one.per_node ? "" : "s"} now`);
    const part = el("details", { class: "gp-alt", name: "sooner" }, summary, form);
    keep.addEventListener("click", () => { part.open = false; summary.focus(); });
    form.addEventListener("submit", once);
    return part;
  }

  // What somebody is deciding on does not change under their hands; the server has the last word.
  function drawSooner(r) {
    const box = $("[data-sooner]"), list = isWaiting(r) ? state.sooner : [];
    if ($("details[open]", box) && isWaiting(r)) return;
    const key = JSON.stringify([list, r.name, r.duration_hours, r.queue_position, r.queue_length, r.no_later_than]);
    fill(box, key, () => (list.length ? [el("span", { class: "gp-sm gp-b" }, "Sooner:"), ...list.map((one) => soonerPart(one, r))] : []));
    show(box, list.length > 0);
  }

  // Extend -------------------------------------------------------------------------------

  function drawExtend(r) {
    const box = $("[data-extend]"), room = runs(r) ? state.extension : null;
    show(box, Boolean(room));
    if (!room) { box.open = false; return; }
    show($("[data-extend-title]"), room.choices.length > 0);
    fill($("[data-choices]"), JSON.stringify(room.choices), () => room.choices.map(choice));
    const why = window.gpudev.boundWords(room.bound);
    const words = room.choices.length ? `Not longer: ${why}` : `Not possible: ${why} To go on, make a new reservation${r.disk ? `; disk ${r.disk} keeps the files` : ""}.`;
    setText($("[data-bound]"), words);
  }

  const choice = ({ until, hours: more }) => el("button", { class: "gp-btn small", type: "submit", name: "until", value: until }, el("b", {}, time(until)), more === null ? " longest" : ` +${hours(more)}`);

  // What the server refused, once, in local time: `refused` comes with the page that answers a form.
  function drawRefusal() {
    const told = window.gpudev.readState("gp-refused");
    if (!told) return;
    const box = $(`[data-refused="${told.where}"]`), text = $("[data-refused-text]", box);
    if (told.where === "extend") text.replaceChildren(...refusedEnd(told));
    box.focus();
    history.replaceState(null, "", page.dataset.page);
  }

  function refusedEnd(told) {
    const why = window.gpudev.boundWords({ code: told.reason, ...told.values });
    if (!why) return [told.detail];
    const parts = [el("b", {}, `${state.reservation.name} cannot be extended ${told.fits ? "so far" : "now"}.`), ` ${window.gpudev.capital(why)}`];
    if (told.fits) parts.push(el("div", {}, el("button", { class: "gp-btn small", type: "submit", name: "until", value: told.fits }, `Extend until ${time(told.fits)}`)));
    return parts;
  }

  // A form is sent once.
  function once(event) {
    const button = event.submitter;
    if (!button) return;
    if (button.getAttribute("aria-disabled")) event.preventDefault();
    setAttr(button, "aria-disabled", "true");
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
    const values = { gpu_type: r.gpu_type, gpu_count: r.gpu_count, hours: window.gpudev.round(r.duration_hours), disk: r.disk, name: r.request?.name ?? "" };
    const query = new URLSearchParams(Object.entries(values).map(([name, value]) => [`opt-${name}`, String(value)]));
    return `${page.dataset.new}?${query}`;
  }

  // Timeline -------------------------------------------------------------------------

  const FROM = { browser: "from the browser", rest: "through the hub's API", api: "through the API", cli: "from a terminal" };
  const by = (actor) => (!window.gpudev.isPerson(actor) ? "" : actor === state.reservation.user_id && state.is_owner ? "by you" : `by ${actor}`);
  const join = (...parts) => parts.filter(Boolean).join(", ");

  const asks = (what) => `${window.gpudev.gpus(what.gpu_type, what.gpu_count)} for ${hours(what.hours)}${what.disk ? `, disk ${what.disk}` : ""}`;
  const promise = (iso) => (iso ? `no later than ${time(iso)}` : "not known yet");

  const EVENTS = {
    filed: (e) => ({ title: "Filed", text: join(FROM[e.detail.from], by(e.actor)) }),
    queued: (e) => ({ title: "Queued", text: join(e.detail.position ? window.gpudev.ordinal(e.detail.position) : "", e.detail.no_later_than ? `promised no later than ${time(e.detail.no_later_than)}` : "") }),
    preparing: (e, r) => ({ title: "GPUs assigned", text: `${window.gpudev.gpusOf(r)}${e.detail.nodes?.length ? ` on ${e.detail.nodes.join(", ")}` : ""}` }),
    active: (e, r) => ({ title: "Active", text: `the ${hours(r.request?.hours ?? r.duration_hours)} started` }),
    ending: (e) => ({ title: "Ending", text: join(by(e.actor), cause(e.detail.reason)) }),
    expired: () => ({ title: "Ended", text: "time was up" }),
    cancelled: (e) => ({ title: "Cancelled", text: join(by(e.actor), cause(e.detail.reason)) }),
    failed: (e) => ({ title: "Failed", text: cause(e.detail.reason), bad: true }),
    promise_moved: (e) => ({ title: "Promise moved", text: `${window.gpudev.movedCause(e.detail, e.at)}; was ${promise(e.detail.old)}, now ${promise(e.detail.new)}`, bad: true }),
    extended: (e) => ({ title: "Extended", text: join(`until ${time(e.detail.new)}, was ${time(e.detail.old)}`, by(e.actor)) }),
    changed: (e) => ({ title: "Changed", text: join(`was ${asks(e.detail.old)}; now ${asks(e.detail.new)}`, e.detail.kept_place ? "place kept" : "new place", by(e.actor)) }),
    requeued: (e) => ({ title: e.detail.to ? "Filed again" : "Filed again after a failure", text: by(e.actor) }),
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

  // "13:30 to 14:10", "by 14:10", "about 13:30".
  function ahead(r) {
    const about = window.gpudev.isAhead(r.expected_start) ? time(window.gpudev.steady(r.reservation_id, r.expected_start)) : "";
    const by = window.gpudev.isAhead(r.no_later_than) ? time(r.no_later_than) : "";
    if (about && by && about !== by) return `${about} to ${by}`;
    return by ? `by ${by}` : about ? `about ${about}` : "next";
  }

  function warningAhead(r) {
    const next = [30, 15, 5].filter((minutes) => window.gpudev.left(r) > minutes * 60_000), [first, ...again] = next;
    if (!first) return [];
    return [{ at: time(ms(r.expires_at) - first * 60_000), title: "Warning", text: `${first} minutes before the end${again.length ? `, again at ${again.join(" and ")}` : ""}` }];
  }

  function stepsAhead(r) {
    if (r.ending) return [{ at: "next", title: "Ended", text: r.disk ? `disk ${r.disk} is free again, GPUs go back` : "GPUs go back" }];
    const work = { at: "then", title: "You can work", text: `the ${hours(r.duration_hours)} start here, not before` };
    const assigned = { at: ahead(r), title: r.gpu_count ? "GPUs assigned" : "Slot assigned", text: `${window.gpudev.gpusOf(r)}${r.planned_nodes?.length && !r.nodes.length ? ` on ${window.gpudev.onNodes(r.planned_nodes)}` : ""}` };
    switch (r.status) {
      case "pending": case "queued": return [assigned, { at: "then", title: r.disk ? "Disk and server" : "Server", text: "a few seconds" }, work];
      case "preparing": return [{ ...work, at: "next" }];
      case "active": return [...warningAhead(r), { at: time(r.expires_at), title: "End", text: `programs stop, ${r.disk ? `disk ${r.disk} is kept, ` : "files are gone, "}GPUs go back` }];
      default: return [];
    }
  }

  // Where it is now. It stands in the line of the event that led there, if that was the last one.
  function currentStep(r) {
    if (r.ending) return { event: "ending" };
    if (r.status === "queued") return { event: "queued", title: r.queue_position ? `Queued, ${window.gpudev.place(r)}` : "Queued", text: queuedText(r) };
    const failed = state.events.at(-1).event === "start_failed";
    if (r.status === "preparing" && failed) return { event: "", title: window.gpudev.isAhead(r.retry_at) ? `Trying again ${window.gpudev.atTime(r.retry_at)}` : "Trying again", text: "" };
    if (r.status === "active" && state.events.at(-1).event !== "active") return { event: "", title: "Active", text: window.gpudev.gpusOf(r) };
    return { event: state.events.at(-1).event };
  }

  const queuedText = (r) => [window.gpudev.reason(r.reason), r.no_later_than ? `Promised no later than ${time(r.no_later_than)}.` : ""].filter(Boolean).join(" ");

  function timeline() {
    const r = state.reservation, past = state.events.map((event) => eventStep(event, r));
    const last = past.at(-1);
    const now = isOpen(r) && last ? currentStep(r) : null;
    if (now && state.events.at(-1).event === now.event) Object.assign(last, now, { look: "cur" });
    else if (now) past.push({ ...now, at: "now", look: "cur" });
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
    setText($("[data-nodes]"), r.nodes.join(", ") || (!isWaiting(r) ? "none" : r.planned_nodes?.length ? `${r.planned_nodes.join(", ")} (planned)` : "not chosen yet"));
    setText($("[data-counts]"), countsAs(r));
    setText($("[data-what]"), `${window.gpudev.gpusOf(r)} for ${hours(r.duration_hours)}, ${r.disk ? `disk ${r.disk}` : "no disk"}${state.is_owner ? "" : `, reserved by ${r.user_id}`}. Times in ${window.gpudev.zone()}.`);
    show($("[data-close-hint]"), isWaiting(r));
  }

  function countsAs(r) {
    if (!r.gpu_count) return "0 GPU-hours";
    if (!isOpen(r)) return window.gpudev.plural(usedHours(r), "GPU-hour");
    return window.gpudev.plural(window.gpudev.round(r.gpu_count * r.duration_hours), "GPU-hour");
  }

  function titleWords(r) {
    if (r.ending && isOpen(r)) return "Ending";
    switch (r.status) {
      case "pending": return "Filed";
      case "queued": return window.gpudev.sentence(r).replace(/^Queued\..*/, "Queued");
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
    const isBusy = $("[data-end]")?.open || $("[data-sooner] details[open]"); // about to end or change it: not the moment to be taken away
    if (!document.hidden && !isBusy) location.assign(r.lab_url);
  }

  function tick() {
    const r = state.reservation;
    drawSentence(r);
    drawSpan(r);
    drawTitle(r);
    drawMessages(r);
    window.gpudev.drawPill($("[data-pill]"), r);
  }

  function draw() {
    const r = state.reservation;
    drawDetails(r);
    drawActions(r);
    drawSooner(r);
    drawExtend(r);
    drawTimeline();
    tick();
  }

  function start() {
    clock.set(state.now);
    const keep = $("[data-keep]");
    show(keep, true);
    keep?.addEventListener("click", () => { $("[data-end]").open = false; $("[data-end] summary").focus(); });
    for (const form of window.gpudev.$$("[data-end] form, [data-extend] form")) form.addEventListener("submit", once);
    addEventListener("pageshow", (event) => { if (event.persisted) for (const button of window.gpudev.$$("form [aria-disabled]", page)) setAttr(button, "aria-disabled", null); });
    draw();
    drawRefusal();
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
