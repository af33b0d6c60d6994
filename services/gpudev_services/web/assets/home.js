/* Home: what I have, what is free, what my quota leaves. */
(() => {
  "use strict";

  const { $, $$, el, setAttr, setText, show, fill, clock, plain, plural, countdown, endTime, time, isOpen, isWaiting } = window.gpudev;
  const page = $("[data-home]");
  if (!page) return;

  const RING = 2 * Math.PI * 46;
  const TICK = 1000;
  let state = window.gpudev.readState();
  let feed = null;
  const cards = new Map();

  const pageOf = (r) => `${page.dataset.homeUrl}reservations/${encodeURIComponent(r.reservation_id)}`;
  const diskWords = (r) => (r.disk ? `disk ${r.disk}` : "no disk");

  // My reservations ------------------------------------------------------------------

  function ring() {
    const space = "http://www.w3.org/2000/svg", svg = document.createElementNS(space, "svg");
    svg.setAttribute("viewBox", "0 0 104 104");
    svg.setAttribute("aria-hidden", "true");
    for (const look of ["", "v"]) {
      const circle = document.createElementNS(space, "circle");
      for (const [name, value] of [["cx", 52], ["cy", 52], ["r", 46], ["class", look]]) circle.setAttribute(name, value);
      svg.append(circle);
    }
    return el("div", { class: "gp-ring", "data-ring": "" }, svg, el("div", {}, el("b", { "data-left": "" }), el("small", {}, "left")));
  }

  function makeCard(r) {
    const title = `r-${r.reservation_id}`;
    return el("article", { class: "gp-card gp-res", "aria-labelledby": title },
      ring(),
      el("div", { class: "gp-stack gp-resw" },
        el("div", { class: "gp-row" }, el("h3", { id: title }, el("a", { href: pageOf(r) }, r.name)), el("span", { "data-pill": "" })),
        el("p", { class: "gp-sm", "data-what": "" }),
        el("p", { class: "gp-b", "data-line": "" }),
        el("p", { class: "gp-sm gp-muted", "data-note": "" })),
      el("div", { class: "gp-note warn gp-wide", "data-told": "", hidden: true }, window.gpudev.icon("warning"), el("div", { class: "gp-grow", "data-told-text": "" })),
      el("div", { class: "acts" }, el("div", { class: "gp-row gp-acts" },
        el("a", { class: "gp-btn go", "data-lab": "" }, "Open JupyterLab"),
        el("a", { class: "gp-btn", href: pageOf(r) }, "Details"))));
  }

  function drawCard(card, r) {
    const runs = r.status === "active" && !r.ending;
    window.gpudev.drawPill($("[data-pill]", card), r);
    setText($("[data-what]", card), `${window.gpudev.gpusOf(r)}${r.nodes.length ? ` on ${r.nodes.join(", ")}` : ` for ${window.gpudev.hours(r.duration_hours)}`}, ${diskWords(r)}`);
    setText($("[data-line]", card), runs ? `Ends ${endTime(r.expires_at)}` : window.gpudev.sentence(r));
    window.gpudev.setWords($("[data-note]", card), noteFor(r, runs));
    show($("[data-note]", card), noteFor(r, runs) !== "");
    const lab = $("[data-lab]", card);
    show(lab, Boolean(r.lab_url));
    if (r.lab_url) setAttr(lab, "href", r.lab_url);
    drawRing($("[data-ring]", card), r, runs);
    drawTold($("[data-told]", card), r);
    card.classList.toggle("noring", !runs);
  }

  // The end that comes near, or a promise that could not be kept.
  function drawTold(note, r) {
    const moved = window.gpudev.brokenPromise(r, r.notices), warning = window.gpudev.warning(r, r.notices);
    const [first, then] = moved ? window.gpudev.movedWords(moved, r) : warning ? window.gpudev.warningWords(r) : ["", ""];
    show(note, Boolean(first));
    fill($("[data-told-text]", note), first + then, () => [el("b", {}, ...window.gpudev.inPieces(first)), ` ${then}`]);
  }

  function noteFor(r, runs) {
    if (runs) return r.disk ? `Started ${time(r.launched_at)}` : `No disk: files are gone ${window.gpudev.atTime(r.expires_at)}.`;
    return isWaiting(r) ? window.gpudev.reason(r.reason) : "";
  }

  function drawRing(node, r, runs) {
    show(node, runs);
    if (!runs) return;
    const left = Math.max(0, window.gpudev.left(r)), whole = Date.parse(r.expires_at) - Date.parse(r.launched_at);
    const share = whole > 0 ? Math.min(1, left / whole) : 0;
    setAttr($(".v", node), "stroke-dasharray", `${(share * RING).toFixed(1)} ${RING.toFixed(2)}`);
    node.classList.toggle("low", left <= 30 * 60_000);
    setText($("[data-left]", node), countdown(left));
  }

  function drawCards() {
    const open = state.reservations.filter(isOpen).sort((a, b) => isWaiting(a) - isWaiting(b)), box = $("[data-cards]");
    const ids = open.map((r) => r.reservation_id);
    for (const [id, card] of cards) if (!ids.includes(id)) { card.remove(); cards.delete(id); }
    if (!box.dataset.live) { box.replaceChildren(); box.dataset.live = "1"; }
    open.forEach((r, at) => {
      if (!cards.has(r.reservation_id)) cards.set(r.reservation_id, makeCard(r));
      const card = cards.get(r.reservation_id);
      if (box.children[at] !== card) box.insertBefore(card, box.children[at] ?? null);
      drawCard(card, r);
    });
    show(box, open.length > 0);
    show($("[data-empty]"), open.length === 0);
    show($("[data-new-button]"), open.length > 0); // with nothing there, the one filled button is in the empty box
    setText($("[data-summary]"), summary(open));
  }

  function summary(open) {
    const running = open.filter((r) => !isWaiting(r)).length, waiting = open.length - running;
    return [running ? `${running} running` : "", waiting ? `${waiting} waiting` : ""].filter(Boolean).join(", ");
  }

  // Free, quota, ended ---------------------------------------------------------------

  function drawEmpty() {
    const sum = (types) => types.reduce((all, type) => all + type.free, 0);
    const free = sum(state.types.filter((type) => !type.is_cpu)), slots = sum(state.types.filter((type) => type.is_cpu));
    const parts = [plural(free, "GPU"), ...(slots ? [plural(slots, "CPU slot")] : [])];
    setText($("[data-free-now]"), `${parts.join(" and ")} ${free === 1 && !slots ? "is" : "are"} free right now.`);
  }

  function drawCluster() {
    const box = $("[data-cluster]"), names = state.types.map((type) => type.gpu_type).join();
    fill(box, names, () => state.types.map((type) => el("div", { "data-type": type.gpu_type },
      el("h3", {}, type.gpu_type, el("span", { class: "gp-tf" }, el("b", { "data-free": "" }), " ", el("small", { "data-total": "" }))), el("ul"))));
    for (const type of state.types) {
      const part = [...box.children].find((one) => one.dataset.type === type.gpu_type);
      setText($("[data-free]", part), String(type.free));
      setText($("[data-total]", part), `${window.gpudev.freeWords(type)}${type.maintenance ? ", closed" : ""}${type.down ? `, ${type.down} down` : ""}`);
      window.gpudev.drawNodes($("ul", part), type.nodes);
    }
  }

  function drawQuota() {
    for (const row of $$("[data-q]", page)) {
      const { limit, used } = state.quota[row.dataset.q], meter = $(".gp-meter", row);
      setText($("[data-used]", row), `${plain(used)} of ${plain(limit)} in use`);
      show(meter, true);
      $(".a", meter).style.width = `${limit ? Math.min(used / limit, 1) * 100 : 0}%`;
    }
  }

  function drawEnded() {
    const ended = state.reservations.filter((r) => !isOpen(r));
    show($("[data-ended]"), ended.length > 0);
    const key = ended.map((r) => `${r.reservation_id} ${time(r.reservation_ended)}`).join();
    fill($("[data-ended-rows]"), key, () => ended.map(endedRow));
  }

  function endedRow(r) {
    const pill = el("span");
    window.gpudev.drawPill(pill, r);
    return el("tr", {},
      el("td", {}, el("a", { href: pageOf(r) }, r.name)),
      el("td", { class: "gp-nw" }, window.gpudev.gpusOf(r)),
      el("td", {}, el("span", { class: "gp-row" }, pill, el("span", {}, time(r.reservation_ended)))));
  }

  function drawAge() {
    const live = feed && feed.lostSince === null;
    setText($("[data-fresh]"), `As of ${time(live ? clock.now() : feed?.lastGood ?? state.now)}${live ? ", updating live" : ""}. Times in ${window.gpudev.zone()}.`);
    show($("[data-stale]"), state.stale);
    if (!state.stale) return;
    const since = state.as_of ? `The figures of the cluster are from ${time(state.as_of)}.` : "There are no figures of the cluster yet.";
    const age = state.as_of ? ` It has not answered for ${window.gpudev.duration(clock.now() - Date.parse(state.as_of))}.` : "";
    fill($("[data-stale-text]"), since + age, () => [el("b", {}, since), `${age} You can still file a request: it keeps its place.`]);
  }

  function draw() {
    drawCards();
    drawEmpty();
    drawCluster();
    drawQuota();
    drawEnded();
    drawAge();
  }

  function tick() {
    for (const r of state.reservations) if (cards.has(r.reservation_id)) drawCard(cards.get(r.reservation_id), r);
    drawAge();
  }

  clock.set(state.now);
  if (page.dataset.feed || page.dataset.state) {
    feed = new window.gpudev.Feed({
      feedUrl: page.dataset.feed, stateUrl: page.dataset.state, banner: $("[data-conn]"),
      onState: (next) => { state = next; draw(); },
    });
  }
  draw();
  setInterval(tick, TICK);
})();
