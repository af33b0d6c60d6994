/* The spawn form, live: what starts now, what waits, what the quota leaves. The server decides; this only tells. */
(() => {
  "use strict";

  const { $, $$, el, setAttr, setText, show, fill, icon, clock, plain, plural, hours: hoursWords, gpus } = window.gpudev;
  const page = $("[data-form]"), form = page?.closest("form");
  if (!form) return;

  const REDRAW_EVERY = 20_000; // waits in minutes grow shorter by themselves
  const ASK_AFTER = 300; // the hours are asked for anew when they have stood still for so long
  const DISK_NAME = /^[a-z][a-z0-9]*(-[a-z0-9]+)*$/;
  const SHORTEST = 5 / 60;

  let state = window.gpudev.readState();
  let feed = null;
  let told = ""; // what was changed on the person's behalf, until they choose again
  let sent = false;
  const refused = new Map(); // what the server refused, by field, until that field changes
  let asking = null;
  let askedFor = state.hours;

  clock.set(state.now);

  // Reading ------------------------------------------------------------------------

  const field = (name) => form.elements[name];
  const checked = (name) => $(`input[name="${name}"]:checked`, form);
  const typeOf = (name) => state.types.find((type) => type.gpu_type === name);
  const sizeOf = (type, count) => type.counts.find((size) => size.count === (type.is_cpu ? 0 : count));
  // More nodes than there are: the server refuses. Nodes that are down may come back: that waits.
  const isPossible = (type, count) => { const size = sizeOf(type, count); return Boolean(size) && size.nodes <= type.nodes.length; };
  const largestNow = (type) => type.counts.filter((size) => size.starts_now).at(-1);
  const sizeWords = (size, count) => (size && size.nodes > 1 ? `${size.nodes} nodes` : plural(count, "GPU"));

  function request() {
    const type = typeOf(checked("gpu_type")?.value);
    const wanted = Number(checked("gpu_count")?.value ?? 1);
    const count = type?.is_cpu ? 0 : wanted;
    return {
      type, wanted, count,
      size: type && sizeOf(type, count),
      hours: $("#hours").value === "" ? NaN : Number($("#hours").value),
      disk: checked("disk")?.value ?? "",
      newDisk: field("new_disk_name").value.trim(),
      name: field("name").value.trim(),
    };
  }

  const about = (type, size) => window.gpudev.steady(`${type.gpu_type} ${size.count} ${state.hours}`, size.about);

  const waitWords = (type, size) => {
    const at = about(type, size);
    return at ? window.gpudev.duration(Date.parse(at) - clock.now()) : "";
  };

  // "about 40 min, no later than 14:10"; where both are the same time, the promise alone.
  function waitAndBy(type, size) {
    const at = about(type, size), by = size.no_later_than;
    if (!at || !by) return "";
    const promise = `no later than ${window.gpudev.time(by)}`;
    return Date.parse(at) >= Date.parse(by) || window.gpudev.time(at) === window.gpudev.time(by) ? promise : `about ${waitWords(type, size)}, ${promise}`;
  }

  // Limits of all types together, and those of this type where it has its own.
  const ownLimits = (type) => (type ? state.quota.types?.[type.gpu_type] : null) ?? {};
  const mostHours = (type) => ownLimits(type).hours ?? state.quota.hours;

  function rooms(key, type) {
    const found = [[state.quota[key], ""], [ownLimits(type)[key], type?.gpu_type]].filter(([meter]) => meter);
    return found.map(([meter, name]) => ({ ...meter, name, room: Math.max(meter.limit - meter.used, 0) }));
  }

  const leastRoom = (key, type) => rooms(key, type).sort((a, b) => a.room - b.room)[0] ?? null;
  const ofType = ({ name }, text) => (name ? `${name}: ${text[0].toLowerCase()}${text.slice(1)}` : text);

  // Refusals: the same rules and words as the server's --------------------------------

  const words = (list) => (list.length ? ` by ${list.join(", ")}` : "");
  const holders = () => state.quota.names ?? state.taken_names.filter(Boolean);

  function checkType({ type }) {
    if (!type?.maintenance) return null;
    const open = state.types.filter((one) => !one.maintenance).map((one) => one.gpu_type);
    return { text: `${window.gpudev.closedWords(type.gpu_type, type.maintenance.note)} ${open.length ? `Open: ${open.join(", ")}.` : "No other type is open."}` };
  }

  function checkHours({ type, hours }) {
    const most = mostHours(type);
    if (Number.isNaN(hours)) return { text: "Say how many hours, such as 4." };
    if (hours < SHORTEST - 1e-9) return { text: `${plain(hours)} h is too short. The shortest is 5 minutes.`, fits: 0.5 };
    if (hours <= most) return null;
    const text = ownLimits(type).hours === undefined ? `${plain(hours)} h is more than one reservation may have: at most ${plain(most)} h.` : `${type.gpu_type}: at most ${plain(most)} h per reservation.`;
    return { text, fits: most, quota: true };
  }

  function checkReservations({ type }) {
    const all = leastRoom("reservations", type), waiting = leastRoom("queued", type);
    if (all && all.room < 1) return { text: ofType(all, `You have ${all.used} of ${all.limit} reservations${all.name ? "" : words(holders())}. End one first.`), quota: true };
    if (waiting && waiting.room < 1) return { text: ofType(waiting, `You have ${waiting.used} of ${waiting.limit} reservations in the queue. End one of them, or wait until one has started.`), quota: true };
    return null;
  }

  function checkGpus({ type, count }) {
    const least = leastRoom("gpus", type);
    if (!type || !least || count <= least.room) return null;
    const fits = type.counts.map((size) => size.count).filter((n) => n <= least.room && isPossible(type, n)).at(-1);
    const hint = fits ? ` ${fits} would fit.` : " End one first.";
    return { text: ofType(least, `${count} GPUs are more than your limit leaves. Limit ${least.limit} at once, ${least.used} in use${least.name ? "" : words(holders())}, ${least.room} left.${hint}`), fits, quota: true };
  }

  function checkGpuHours({ type, count, hours }) {
    const least = leastRoom("gpu_hours", type);
    if (!type || !least || !(count * hours > least.room + 1e-9)) return null;
    const fits = Math.floor(least.room / count * 2) / 2;
    const hint = fits > 0 ? ` ${plain(fits)} h would fit.` : "";
    return {
      text: ofType(least, `${gpus(type.gpu_type, count, type.is_cpu ? 0 : type.per_node)} for ${plain(hours)} h come to ${plain(count * hours)} GPU-hours. You have ${plain(least.room)} of ${plain(least.limit)} left, counted over the last ${plain(least.window_days)} days.${hint}`),
      fits: fits > 0 ? fits : undefined, quota: true,
    };
  }

  function checkDisk({ disk, newDisk }) {
    const known = state.disks.find((one) => one.name === (disk === "+" ? newDisk : disk));
    if (disk !== "+") return known?.in_use_by ? { text: `Disk ${disk} is in use by ${known.in_use_by.name}. End that one first, or choose another disk.` } : null;
    const { limit, used } = state.quota.disks;
    if (used >= limit) return { text: `You have ${used} of ${limit} disks. Use one of them, or delete one first.`, quota: true };
    if (known) return { text: `You have a disk ${newDisk} already. Choose it from the list, or choose another name.` };
    if (!newDisk) return { text: "Give the new disk a name, such as experiments." };
    if (!DISK_NAME.test(newDisk)) return { text: `Disk name ${newDisk} is not possible. Small letters, digits and single hyphens, a letter first, such as experiments-2.` };
    return null;
  }

  function checkName({ name }) {
    if (!name || slug(name)) return null;
    return { text: `The name ${name} needs at least one letter a-z, because it becomes part of the address.` };
  }

  function refusals(asked) {
    const found = {
      gpu_type: checkType(asked), reservations: checkReservations(asked), gpu_count: checkGpus(asked), hours: checkHours(asked) ?? checkGpuHours(asked),
      disk: checkDisk(asked), name: checkName(asked),
    };
    for (const [name, error] of refused) found[name] ??= error;
    return Object.fromEntries(Object.entries(found).filter(([, error]) => error));
  }

  // Names ------------------------------------------------------------------------------

  const SLUG_MAX = 30;
  const slug = (name) => (name.toLowerCase().match(/[a-z0-9]+/g) ?? []).join("-").replace(/^[^a-z]+/, "").slice(0, SLUG_MAX).replace(/-+$/, "");

  function freeSlug(wanted) {
    for (let number = 1; ; number += 1) {
      const tail = number === 1 ? "" : `-${number}`;
      const candidate = (tail ? wanted.slice(0, SLUG_MAX - tail.length).replace(/-+$/, "") : wanted) + tail;
      if (!state.taken_names.includes(candidate)) return candidate;
    }
  }

  // Choosing ---------------------------------------------------------------------------

  function check(name, value) {
    const input = $$(`input[name="${name}"]`, form).find((one) => one.type === "radio" && one.value === String(value));
    if (input) input.checked = true;
  }

  function choose({ type, count, hours }) {
    if (type) check("gpu_type", type);
    if (count !== undefined) check("gpu_count", count);
    if (hours !== undefined) $("#hours").value = String(hours);
    if (type || count !== undefined) forget("gpu_count");
    if (hours !== undefined) forget("hours");
    told = "";
    draw();
    askForHours(request());
  }

  // The one thing that is changed unasked: a size that this type does not have.
  function lowerCount() {
    const { type, wanted } = request();
    if (!type || type.is_cpu || isPossible(type, wanted)) return;
    const fits = type.counts.map((size) => size.count).filter((n) => isPossible(type, n));
    const next = fits.filter((n) => n <= wanted).at(-1) ?? fits[0];
    if (next === undefined) return;
    told = `${sizeName(wanted)} ${wanted === 1 ? "does" : "do"} not fit on ${type.gpu_type}, so this is ${sizeName(next)} now. `;
    check("gpu_count", next);
  }

  const sizeName = (count) => {
    const size = state.types.flatMap((type) => type.counts).find((one) => one.count === count);
    return size && size.nodes > 1 ? `${size.nodes} nodes` : String(count);
  };

  // Drawing ----------------------------------------------------------------------------

  function drawTypes(asked) {
    const cards = new Map($$(".gp-type", form).map((card) => [card.dataset.type, card]));
    show($("[data-changed]"), state.types.length !== cards.size || state.types.some((type) => !cards.has(type.gpu_type)));
    for (const type of state.types) if (cards.has(type.gpu_type)) drawType(cards.get(type.gpu_type), type, asked);
  }

  function drawType(card, type, asked) {
    const radio = $("input", card);
    radio.disabled = Boolean(type.maintenance) && !radio.checked; // what was chosen stays chosen, and is refused in words
    setText($("[data-free]", card), String(type.free));
    setText($("[data-total]", card), window.gpudev.freeWords(type));
    setText($("[data-spec]", card), window.gpudev.specWords(type));
    const isChosen = type === asked.type && asked.size?.starts_now;
    const perNode = isChosen ? Math.max(1, asked.count / asked.size.nodes) : 0;
    window.gpudev.drawNodes($("[data-nodes]", card), type.nodes, new Map(isChosen ? asked.size.on.map((name) => [name, perNode]) : []));
    const lines = waitLines(type, asked.wanted);
    fill($("[data-wait]", card), JSON.stringify(lines), () => lines.map(waitLine));
  }

  // The largest that starts now, and what the size that is asked for would wait.
  function waitLines(type, wanted) {
    if (type.maintenance) return [{ look: "gp-later", icon: "warning", text: "Closed for maintenance" }, ...(type.maintenance.note ? [{ look: "gp-muted", text: type.maintenance.note }] : [])];
    const now = largestNow(type), size = sizeOf(type, wanted);
    const lines = [now ? { look: "gp-now", icon: "play", text: nowWords(type, now) } : { look: "gp-later", icon: "clock", text: fullWords(type) }];
    if (!isPossible(type, wanted)) lines.push({ look: "gp-muted", text: `${sizeName(wanted)} ${wanted === 1 ? "does" : "do"} not fit: ${mostWords(type)} at most` });
    else if (!size.starts_now) lines.push(...laterLines(type, size, now));
    return lines;
  }

  const nowWords = (type, size) => (type.is_cpu ? "Starts now" : size.nodes > 1 ? `Up to ${size.nodes} nodes start now` : `Up to ${size.count} start${size.count === 1 ? "s" : ""} now`);

  // Free cells are free for an hour at least; a longer stay may run into a promise.
  const fullWords = (type) => (type.free ? "Free only for a short time" : "Full");

  function mostWords(type) {
    const most = type.counts.filter((size) => isPossible(type, size.count)).at(-1);
    return most ? sizeName(most.count) : "0";
  }

  function laterLines(type, size, now) {
    const wait = waitAndBy(type, size), why = { look: "gp-muted", text: window.gpudev.reason(size.reason) };
    if (!wait) return [why];
    const line = { look: "", text: now ? `${sizeWords(size, size.count)}: ${wait}` : window.gpudev.capital(wait) };
    return now ? [line] : [line, why];
  }

  const waitLine = (line) => el("span", { class: `gp-line ${line.look}` }, line.icon ? icon(line.icon) : null, line.icon ? " " : "", ...window.gpudev.inPieces(line.text));

  function drawCounts({ type }) {
    const set = $("[data-count-set]");
    show(set, !type?.is_cpu);
    show($("[data-cpu-note]"), Boolean(type?.is_cpu));
    $("[data-no-gpu]").disabled = !type?.is_cpu;
    if (!set || !type) return;
    for (const label of $$("[data-count]", set)) drawCount(label, type);
    if (!type.is_cpu) setText($("[data-count-hint]"), told + countHint(type) + (feed ? "" : ` Waits are told for ${hoursWords(state.hours)}.`));
  }

  function drawCount(label, type) {
    const value = Number(label.dataset.count), size = sizeOf(type, value), input = $("input", label);
    const possible = isPossible(type, value);
    input.disabled = type.is_cpu || !possible;
    if (type.is_cpu) return;
    const name = size && size.nodes > 1 ? `${size.nodes} nodes` : sizeName(value);
    const when = !possible ? "–" : size.starts_now ? "now" : waitWords(type, size) || "not now";
    setText($("[data-size]", label), name);
    setText($("[data-sub]", label), when);
    const spoken = possible ? (size.starts_now ? "starts now" : waitWords(type, size) ? `about ${when}` : "not now") : `not on ${type.gpu_type}`;
    setAttr(input, "aria-label", `${size && size.nodes > 1 ? `${name}, ${value} GPUs` : plural(value, "GPU")}, ${spoken}`);
  }

  function countHint(type) {
    if (!type.multinode) return `Up to ${type.per_node}, on one node.`;
    const down = type.nodes.filter((node) => node.cells.startsWith("d")).length, up = type.nodes.length - down;
    const nodes = down ? `${plural(up, "node")} up, ${down} down.` : `There ${type.nodes.length === 1 ? "is 1 node" : `are ${type.nodes.length} nodes`}.`;
    return `Up to ${type.per_node} share one node. More means whole nodes, started together. ${nodes}`;
  }

  function drawHours({ type, hours, size }) {
    const known = Number.isFinite(hours), range = $("[data-range]"), most = mostHours(type);
    for (const chip of $$(".gp-chip", form)) {
      setAttr(chip, "aria-pressed", String(Number(chip.value) === hours));
      show(chip, Number(chip.value) <= most);
    }
    setAttr(range, "max", plain(most));
    setText($("[data-most-hours]"), plain(most));
    setText($("[data-total-hours]"), plain(ownLimits(type).total_hours ?? state.quota.total_hours));
    if (known) range.value = String(hours);
    if (!known || !size) { fill($("[data-ends]"), "", () => []); return; }
    const start = size.starts_now ? clock.now() : Date.parse(size.about);
    const end = Number.isFinite(start) ? window.gpudev.endTime(start + hours * 3_600_000) : "";
    const ends = end ? `, ends ${size.starts_now ? "" : "about "}${end}` : " from the start";
    fill($("[data-ends]"), `${hours}${ends}`, () => [el("b", {}, hoursWords(hours)), ...(end ? [`, ends ${size.starts_now ? "" : "about "}`, el("b", {}, end)] : [ends])]);
    setAttr(range, "aria-valuetext", `${hoursWords(hours)}${ends}`);
  }

  function drawDisks({ disk }) {
    show($("[data-new-disk]"), disk === "+");
    const list = $("[data-disks]"), rows = new Map($$("[data-disk]", list).map((row) => [row.dataset.disk, row]));
    for (const one of state.disks) if (!rows.has(one.name)) rows.set(one.name, addDisk(list, one));
    for (const [name, row] of rows) drawDisk(row, state.disks.find((one) => one.name === name));
  }

  function addDisk(list, disk) {
    const row = el("label", { "data-disk": disk.name },
      el("input", { type: "radio", name: "disk", value: disk.name }),
      el("span", {}, el("b", {}, disk.name), disk.size_gb ? `, ${disk.size_gb} GB` : "", el("small", { class: "gp-line", "data-disk-note": "" })));
    list.insertBefore(row, $('input[value="+"]', list).closest("label"));
    return row;
  }

  // A chosen disk is never disabled: a disabled radio is not sent, and no disk would be asked for.
  function drawDisk(row, disk) {
    const input = $("input", row);
    if (!disk && !input.checked) { row.remove(); return; }
    input.disabled = Boolean(disk?.in_use_by) && !input.checked;
    setText($("[data-disk-note]", row), disk ? diskNote(disk) : "This disk is not there any more.");
  }

  function diskNote(disk) {
    const holder = disk.in_use_by;
    if (holder) return `In use by ${holder.name}${holder.until ? ` until ${window.gpudev.time(holder.until)}` : ""}. End that one first, or choose another disk.`;
    const parts = [disk.last_used ? `Last used ${window.gpudev.ago(disk.last_used)}` : "Not used yet"];
    if (disk.snapshots) parts.push(plural(disk.snapshots, "snapshot"));
    return parts.join(", ");
  }

  function drawQuota({ type, count, hours }) {
    const asks = { gpus: count, gpu_hours: count * (Number.isFinite(hours) ? hours : 0), reservations: 1 };
    for (const row of $$("[data-q]", form)) {
      const key = row.dataset.q, { limit, used, room, name } = leastRoom(key, type), ask = asks[key];
      const meter = $(".gp-meter", row), share = (n) => `${limit ? Math.min(Math.max(n, 0) / limit, 1) * 100 : 100}%`;
      show(meter, true);
      setText($("[data-left]", row), `${plain(room)} of ${plain(limit)} left${name ? ` for ${name}` : ""}${key === "reservations" ? "" : `, asks ${plain(ask)}`}`);
      $(".u", meter).style.width = share(used);
      $(".r", meter).style.width = share(ask > room ? Math.max(room, limit / 50) : ask);
      meter.classList.toggle("over", ask > room + 1e-9);
    }
  }

  const FITS_WORDS = { hours: (fits) => `Use ${plain(fits)} h`, gpu_count: (fits) => `Use ${sizeName(Number(fits))}`, name: () => "Shorten it" };

  function drawRefusals(errors) {
    for (const box of $$("[data-err]", form)) drawRefusal(box, errors[box.dataset.err]);
    for (const name of ["hours", "name", "image"]) {
      const input = document.getElementById(name);
      if (input) describe(input, `err-${name}`, name in errors);
    }
    const disk = field("new_disk_name");
    describe(disk, "err-disk", "disk" in errors);
  }

  function describe(input, id, isRefused) {
    const ids = (input.getAttribute("aria-describedby") ?? "").split(" ").filter((one) => one && one !== id);
    setAttr(input, "aria-describedby", (isRefused ? [...ids, id] : ids).join(" ") || null);
    setAttr(input, "aria-invalid", isRefused ? "true" : null);
  }

  function drawRefusal(box, error) {
    const name = box.dataset.err;
    fill(box, error ? `${error.text}|${error.fits}` : "", () => (error ? refusalParts(name, error) : []));
    show(box, Boolean(error));
  }

  function refusalParts(name, error) {
    const parts = el("div", {}, el("span", { "data-text": "" }, error.text));
    if (error.fits !== undefined && error.fits !== null && name in FITS_WORDS) {
      const use = el("button", { class: "gp-btn small", type: "button" }, FITS_WORDS[name](error.fits));
      use.addEventListener("click", () => applyFit(name, error.fits));
      parts.append(el("div", {}, use));
    }
    return [icon("octagon"), parts];
  }

  function applyFit(name, fits) {
    if (name === "name") field("name").value = fits;
    refused.delete(name);
    choose(name === "hours" ? { hours: fits } : name === "gpu_count" ? { count: fits } : {});
    (name === "gpu_count" ? checked("gpu_count") : document.getElementById(name))?.focus();
  }

  // The bar at the bottom ----------------------------------------------------------------

  const CHANGE = { gpu_count: "GPUs", hours: "hours", disk: "disk", name: "name", image: "image", gpu_type: "type" };

  function buttonFor(asked, errors) {
    const names = Object.keys(errors).filter((name) => name in CHANGE);
    if (errors.reservations) return { shape: "octagon", text: "Over your quota: end a reservation first", off: true };
    if (asked.type?.maintenance) return { shape: "octagon", text: "Closed for maintenance: change type", off: true };
    if (names.length) {
      const over = names.some((name) => errors[name].quota) ? "Over your quota" : "Not possible yet";
      return { shape: "octagon", text: `${over}: change ${names.map((name) => CHANGE[name]).join(" and ")}`, off: true };
    }
    const { size, type } = asked;
    if (!type) return { shape: "clock", text: "No machine has reported yet", off: true };
    if (size?.starts_now && !state.stale) return { shape: "play", text: `Start now on ${size.on.length > 1 ? `${size.on.length} nodes` : size.on[0]}` };
    const at = size && !size.starts_now ? window.gpudev.aboutAndBy(about(type, size), size.no_later_than, "\u00a0") : "";
    return { shape: "clock", text: `Join the queue: ${at ? `start ${at}` : state.stale ? "start time not known" : "start time in a few seconds"}` };
  }

  function whyFor(asked, errors) {
    if (Object.keys(errors).length) return "Nothing has been filed.";
    if (asked.type && state.stale) return "The cluster has not answered for a while. Your request keeps its place.";
    const { size, hours, type } = asked;
    if (!type) return "Nothing can be filed yet.";
    if (size?.starts_now) return `Ready in a few seconds. Ends ${window.gpudev.endTime(clock.now() + hours * 3_600_000)}.`;
    return `${window.gpudev.reason(size?.reason)} You keep your place if you close this page.`.trim();
  }

  function drawBar(asked, errors) {
    const { type, count, hours, disk, newDisk } = asked, go = $("[data-go]");
    const what = type ? [gpus(type.gpu_type, count, type.per_node)] : [];
    if (Number.isFinite(hours)) what.push(hoursWords(hours));
    what.push(disk === "" ? "no disk" : disk === "+" ? `new disk ${newDisk}`.trim() : `disk ${disk}`);
    setText($("[data-what]"), what.join(", "));
    window.gpudev.setWords($("[data-why]"), sent ? "" : whyFor(asked, errors));
    const { shape, text, off } = sent ? { shape: "rays", text: "Filing the request", off: true } : buttonFor(asked, errors);
    fill(go, `${shape} ${text}`, () => [icon(shape), el("span", {}, text)]);
    setAttr(go, "aria-disabled", off ? "true" : null);
    drawAlternatives(asked, errors);
  }

  // What starts now instead: fewer of the same type, a shorter time, then the types nearest in memory.
  function alternatives({ type, size, count, hours }) {
    if (!type || !size || size.starts_now) return [];
    const fewer = type.counts.filter((one) => one.starts_now && one.count < count).at(-1);
    const memory = (other) => Math.abs(other.gpu_memory_gb - type.gpu_memory_gb);
    const others = state.types.filter((other) => other !== type && !other.maintenance && other.is_cpu === type.is_cpu && sizeOf(other, count)?.starts_now);
    const found = [
      ...(fewer ? [{ type, size: fewer, hours }] : []),
      ...(size.now_for_hours ? [{ type, size, hours: size.now_for_hours, isShorter: true }] : []),
      ...others.sort((a, b) => memory(a) - memory(b)).map((other) => ({ type: other, size: sizeOf(other, count), hours })),
    ];
    return found.filter((one) => mayHave({ type: one.type, count: one.size.count, hours: one.hours })).slice(0, 3);
  }

  const mayHave = (asked) => !checkType(asked) && !checkGpus(asked) && !checkGpuHours(asked) && !checkHours(asked);

  function drawAlternatives(asked, errors) {
    const list = Object.keys(errors).length || state.stale || sent ? [] : alternatives(asked), box = $("[data-alts]");
    fill(box, list.map(({ type, size, hours }) => `${type.gpu_type} ${size.count} ${hours}`).join(), () => list.length ? [el("span", { class: "gp-b" }, "Sooner:"), ...list.map(alternative)] : []);
    show(box, list.length > 0);
  }

  function alternative({ type, size, hours, isShorter }) {
    const text = `${gpus(type.gpu_type, size.count, type.per_node)}${isShorter ? ` for ${hoursWords(hours)}` : ""} start${size.nodes > 1 ? "" : "s"} now`;
    const button = el("button", { class: "gp-btn small", type: "button" }, icon("play"), text);
    button.addEventListener("click", () => { choose({ type: type.gpu_type, count: size.count, hours: isShorter ? hours : undefined }); $("[data-go]").focus(); });
    return button;
  }

  const withHours = (url) => (url ? window.gpudev.withValues(url, { hours: askedFor }) : "");

  // Waits are told for the hours that are asked for: a short stay may fit before a promise, a long one not.
  function askForHours({ hours }) {
    clearTimeout(asking);
    if (!feed || !Number.isFinite(hours) || hours <= 0 || hours === askedFor) return;
    asking = setTimeout(() => { askedFor = hours; feed.ask({ hours }); }, ASK_AFTER);
  }

  function drawAge() {
    const silent = state.as_of ? clock.now() - Date.parse(state.as_of) : NaN;
    show($("[data-stale]"), state.stale);
    const since = Number.isFinite(silent) ? `These figures are from ${window.gpudev.time(state.as_of)}.` : "There are no figures yet.";
    const age = Number.isFinite(silent) ? `The cluster has not answered for ${window.gpudev.duration(silent)}.` : "The cluster has not answered yet.";
    fill($("[data-stale-text]"), since + age, () => [el("b", {}, since), ` ${age} You can still file a request: it keeps its place.`]);
    const live = feed && !feed.isLost && feed.lostSince === null;
    const at = live ? clock.now() : feed ? feed.lastGood : Date.parse(state.now);
    setText($("[data-fresh]"), `Free GPUs as of ${window.gpudev.time(at)}${live ? ", updating live" : ""}. Times in ${window.gpudev.zone()}.`);
    show($("[data-fresh]"), !state.stale);
  }

  function drawName({ type, name }) {
    const address = freeSlug(slug(name) || slug(type?.gpu_type ?? "") || "server");
    setText($("[data-slug]"), address);
    show($("[data-address]"), true);
    setAttr(field("name"), "placeholder", address);
  }

  function draw() {
    lowerCount();
    const asked = request(), errors = refusals(asked);
    drawTypes(asked);
    drawCounts(asked);
    drawHours(asked);
    drawDisks(asked);
    drawQuota(asked);
    drawName(asked);
    drawRefusals(errors);
    drawBar(asked, errors);
    drawAge();
  }

  // Listening ------------------------------------------------------------------------

  function onInput(event) {
    const input = event.target;
    if (input.matches("[data-range]")) $("#hours").value = input.value;
    if (input.name === "gpu_type" || input.name === "gpu_count") told = "";
    forget(input.matches("[data-range]") ? "hours" : input.name === "new_disk_name" ? "disk" : input.name);
    draw();
    askForHours(request());
  }

  // A refusal of the server holds for what was sent: changing that, or what it depends on, asks anew.
  function forget(name) {
    refused.delete(name);
    refused.delete("");
    if (name === "gpu_type" || name === "gpu_count") for (const one of ["gpu_type", "gpu_count", "hours"]) refused.delete(one);
  }

  function onSubmit(event) {
    const first = $$("[data-err]", form).find((box) => !box.hidden && box.dataset.err !== "" && !sent);
    if (!first && !sent && request().type) { sent = true; draw(); return; }
    event.preventDefault();
    if (first) focusRefusal(first);
  }

  function focusRefusal(box) {
    box.scrollIntoView({ block: "center" });
    ($("button", box) ?? box).focus({ preventScroll: true });
  }

  function readRefusals() {
    for (const box of $$("[data-err]:not([hidden])", form)) {
      const fits = $("[data-fits]", box)?.dataset.fits;
      refused.set(box.dataset.err, { text: $("[data-text]", box)?.textContent ?? "", fits });
    }
  }

  function start() {
    form.noValidate = true; // the words beside the field say more than the browser's
    readRefusals();
    for (const node of [$("[data-chips]"), $("[data-range]"), $("[data-meter-hint]")]) show(node, true);
    for (const chip of $$(".gp-chip", form)) chip.addEventListener("click", () => choose({ hours: Number(chip.value) }));
    form.addEventListener("input", onInput);
    form.addEventListener("submit", onSubmit);
    addEventListener("pageshow", (event) => { if (event.persisted) { sent = false; draw(); } });
    if (page.dataset.feed || page.dataset.state) {
      feed = new window.gpudev.Feed({
        feedUrl: withHours(page.dataset.feed), stateUrl: withHours(page.dataset.state), banner: $("[data-conn]"),
        onState: (next) => { state = next; refused.delete("reservations"); draw(); },
      });
    }
    draw();
    askForHours(request());
    setInterval(draw, REDRAW_EVERY);
    const first = $("[data-err]:not([hidden])", form);
    if (first && refused.size) focusRefusal(first);
  }

  start();
})();
