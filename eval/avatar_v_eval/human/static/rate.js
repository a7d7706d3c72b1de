// The rating page: players in step, keys, one answer at a time. The server decides what comes next.
"use strict";

const all = (query, root = document) => [...root.querySelectorAll(query)];
const one = (query, root = document) => root.querySelector(query);

// dialogs, on every page; a closed one gives focus back, and on its button Enter would open it again
all("[data-open]").forEach((b) => b.addEventListener("click", () => {
  b.blur();
  one("#" + b.dataset.open).showModal();
}));
all("[data-close]").forEach((b) => b.addEventListener("click", () => b.closest("dialog").close()));

// Enter goes on from a page of text; focus would scroll its beginning out of sight
const onward = one("[data-enter]");
if (onward) document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.repeat && !one("dialog[open]") && !focusedControl())
    onward.click();
});

// what Enter and space act on by themselves; a closed dialog keeps the focus for a frame or more
function focusedControl() {
  return document.activeElement.closest("header button, main button, main input");
}

const rate = one("#rate");
if (rate) startItem();

function startItem() {
  const videos = all("video", rate).filter((v) => v.dataset.side !== "reference");
  const reference = one("video[data-side=reference]", rate);
  const rows = all(".dimension", rate);
  const send = one("[data-act=send]"), hint = one("#hint"), seek = one("#seek");
  const lead = videos[0];
  const kind = rate.dataset.kind;
  const seen = new Set();
  const answer = {};
  const own = rate.dataset.own ? JSON.parse(rate.dataset.own) : null; // a reviewer decides
  let active = 0, busy = false, broken = false;

  // ---- players: the others follow the first one ----
  const MAX_DRIFT_S = 0.06;
  const BETWEEN_FIXES_MS = 700; // a seek takes time: one after the other on a slow machine never ends
  const fixed = new Map();
  const playing = () => videos.some((v) => !v.paused && !v.ended);

  function play() {
    if (reference) reference.pause();
    if (videos.every((v) => v.ended)) videos.forEach((v) => (v.currentTime = 0));
    videos.filter((v) => !v.ended).forEach((v) => v.play().catch(() => {}));
  }
  const pause = () => videos.forEach((v) => v.pause());
  const toggle = () => (playing() ? pause() : play());
  function again() { videos.forEach((v) => (v.currentTime = 0)); play(); }
  function playReference() {
    if (!reference) return;
    pause();
    if (reference.paused) { reference.currentTime = 0; reference.play().catch(() => {}); } else reference.pause();
  }
  function swapSound() {
    if (videos.length < 2) return;
    videos.forEach((v) => (v.muted = !v.muted));
    one("#sound").textContent = videos[0].muted ? "B" : "A";
    marks();
  }
  function keepStep(now) {
    for (const v of videos.slice(1)) {
      const running = [lead, v].every((one) => !one.paused && !one.ended && !one.seeking && one.readyState > 2);
      const rested = now - (fixed.get(v) ?? -Infinity) > BETWEEN_FIXES_MS;
      if (running && rested && Math.abs(v.currentTime - lead.currentTime) > MAX_DRIFT_S) {
        v.currentTime = lead.currentTime;
        fixed.set(v, now);
      }
    }
    const length = Math.max(...videos.map((v) => v.duration || 0));
    if (length && document.activeElement !== seek)
      seek.value = (1000 * Math.max(...videos.map((v) => v.currentTime))) / length;
    if (marking) marking.now();
    requestAnimationFrame(keepStep);
  }
  seek.addEventListener("input", () => {
    const length = Math.max(...videos.map((v) => v.duration || 0));
    videos.forEach((v) => (v.currentTime = Math.min(v.duration, (seek.value / 1000) * length)));
  });
  seek.addEventListener("change", () => seek.blur());

  function marks() {
    videos.forEach((v) => {
      const heard = videos.length > 1 && !v.muted ? "sound on" : "";
      one(".tag", v.closest("figure")).textContent = [heard, seen.has(v) ? "seen" : ""].filter(Boolean).join(" · ");
    });
    one("[data-act=play]").firstChild.textContent = playing() ? "Pause " : "Play ";
    ready();
  }
  videos.forEach((v) => {
    v.addEventListener("ended", () => { seen.add(v); marks(); });
    ["play", "pause"].forEach((name) => v.addEventListener(name, marks));
  });
  [...videos, reference].filter(Boolean).forEach((v) =>
    v.addEventListener("error", () => { broken = true; tell("A video cannot be loaded. Please reload the page.", true); }));

  // ---- answers ----
  function tell(text, wrong = false) { hint.textContent = text; hint.classList.toggle("wrong", wrong); }
  function complete() {
    if (rows.length) return Object.keys(answer).length === rows.length;
    return "choice" in answer || "ranges" in answer;
  }
  const asked = { mos: "Give each line a number from 1 to 5", score: "Move each slider, from 0 to 100", attributes: "Choose one in each line",
    ranges: "Mark a fault, or say that there is none" }[kind] || "Choose with the arrow keys";
  function ready() {
    const watched = own || videos.every((v) => seen.has(v));
    send.disabled = busy || broken || !watched || !complete();
    if (broken || busy) return;
    if (!watched) tell("Watch to the end first: press space");
    else if (!complete()) tell(asked);
    else tell("");
  }
  function choose(choice) {
    const button = one(`[data-choice=${choice}]`);
    if (!button) return;
    answer.choice = choice;
    all("[data-choice]").forEach((b) => b.classList.toggle("chosen", b === button));
    ready();
  }
  function score(row, button) {
    if (!button) return;
    const value = button.dataset.value;
    answer[row.dataset.dimension] = kind === "mos" ? Number(value) : value;
    pick(all("button", row), button);
    const next = rows.findIndex((r) => !(r.dataset.dimension in answer));
    activate(next < 0 ? rows.indexOf(row) : next);
    ready();
  }
  function slide(row, value) {
    const slider = one("input", row);
    slider.value = value;
    answer[row.dataset.dimension] = Number(slider.value);
    one("output", row).textContent = slider.value;
    activate(rows.indexOf(row));
    ready();
  }
  function pick(buttons, chosen) {
    buttons.forEach((b) => {
      b.classList.toggle("chosen", b === chosen);
      b.setAttribute("aria-checked", b === chosen);
    });
  }
  function activate(index) {
    active = Math.max(0, Math.min(rows.length - 1, index));
    rows.forEach((r, i) => r.classList.toggle("active", i === active));
  }

  async function submit() {
    if (send.disabled) return;
    busy = true; send.disabled = true;
    pause();
    try {
      const response = await fetch(rate.dataset.base + "/answer", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ item: rate.dataset.item, answer, decision: own !== null }),
      });
      const said = await response.json();
      if (response.status === 409) { location.reload(); return; }
      if (!response.ok) throw new Error(said.error || "The answer was not accepted.");
      if (said.right === null) location.reload();
      else showFeedback(said);
    } catch (error) {
      busy = false; ready();
      tell(error instanceof TypeError ? "No connection. Please send again." : error.message, true);
    }
  }
  function showFeedback(said) {
    const dialog = one("#feedback");
    one("h2", dialog).textContent = said.right ? "Yes, that is what we see too" : "We see this differently";
    one("p", dialog).textContent = said.why;
    dialog.addEventListener("close", () => location.reload());
    dialog.showModal();
  }

  // ---- mouse and keys ----
  const marking = kind === "ranges" ? rangeMarks(lead, answer, ready) : null;
  const acts = { ...(marking && marking.acts), play: toggle, again, sound: swapSound, reference: playReference, send: submit,
    next: () => one("#feedback").close() };
  all("[data-act]").forEach((b) => b.addEventListener("click", () => { acts[b.dataset.act](); b.blur(); }));
  all("[data-choice]").forEach((b) => b.addEventListener("click", () => { choose(b.dataset.choice); b.blur(); }));
  rows.forEach((row) => all("button", row).forEach((b) =>
    b.addEventListener("click", () => { score(row, b); b.blur(); })));
  if (kind === "score") rows.forEach((row) => {
    one("input", row).addEventListener("input", (event) => slide(row, event.target.value));
    one("input", row).addEventListener("change", (event) => event.target.blur());
  });

  const keys = { " ": toggle, r: again, m: swapSound, f: playReference, enter: submit,
    "?": () => one("#help").showModal() };
  const sides = { a: "left", arrowleft: "left", b: "right", arrowright: "right", t: "tie", arrowdown: "tie" };
  const pairKeys = Object.fromEntries(Object.entries(sides).map(([key, side]) => [key, () => choose(side)]));
  const rowKeys = { arrowup: () => activate(active - 1), arrowdown: () => activate(active + 1) };
  const moved = (by) => () => slide(rows[active], Number(one("input", rows[active]).value) + by);
  if (kind === "score") Object.assign(rowKeys, { arrowleft: moved(-1), arrowright: moved(1) });
  for (let i = 1; i < 10; i++) rowKeys[i] = kind === "score" ? () => slide(rows[active], 10 * i) : () => score(rows[active], all("button", rows[active])[i - 1]);
  const keysOf = marking ? marking.keys : rows.length ? rowKeys : pairKeys;
  document.addEventListener("keydown", (event) => {
    if (one("dialog[open]") || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.toLowerCase();
    const known = key in keys || key in keysOf;
    const elsewhere = focusedControl();
    if (!known || (elsewhere && (key === "enter" || key === " "))) return;
    event.preventDefault();
    if (event.repeat && !((marking || kind === "score") && key.startsWith("arrow"))) return;
    (keys[key] || keysOf[key])();
  });

  if (own && marking) marking.load(own.ranges);
  else if (own && own.choice) choose(own.choice);
  else if (own && kind === "score") rows.forEach((row) => slide(row, own[row.dataset.dimension]));
  else if (own) rows.forEach((row) => score(row, one(`[data-value="${own[row.dataset.dimension]}"]`, row)));
  if (rows.length) activate(0);
  marks();
  requestAnimationFrame(keepStep);
}

// ranges: a fault is chosen, then its start and its end; nothing marked is said by a button of its own
function rangeMarks(video, answer, changed) {
  const STEP_S = 0.1;
  const faults = all("[data-fault]"), list = one("#marks"), track = one("#track"), shown = one("#now");
  let marks = [], fault = null, start = null;

  const at = () => Math.round(100 * Math.min(video.currentTime, video.duration || 0)) / 100;
  function choose(button) {
    if (!button) return;
    fault = button;
    faults.forEach((b) => {
      b.classList.toggle("chosen", b === button);
      b.setAttribute("aria-checked", b === button);
    });
  }
  function begin() { start = at(); draw(); }
  function end() {
    const stop = at();
    if (!fault || start === null || stop <= start) {
      note(!fault ? "Choose the kind of fault first" : start === null ? "Press S at its start first" : "It must end after its start");
      return;
    }
    marks.push({ fault: fault.dataset.fault, start, stop });
    start = null;
    settle(marks);
  }
  function undo() {
    if (start !== null) { start = null; draw(); return; }
    marks.pop();
    settle(marks.length ? marks : undefined);
  }
  function clean() { marks = []; start = null; settle(marks); }
  function settle(ranges) {
    if (ranges) answer.ranges = ranges; else delete answer.ranges;
    draw();
    changed();
  }
  function note(text) { one("#hint").textContent = text; }
  function title(key) { return faults.find((b) => b.dataset.fault === key).dataset.title; }

  function draw() {
    one("[data-act=clean]").classList.toggle("chosen", "ranges" in answer && !marks.length);
    one("[data-act=start]").classList.toggle("chosen", start !== null);
    list.replaceChildren(...marks.map((mark, i) => {
      const line = document.createElement("li"), go = document.createElement("button");
      const away = document.createElement("button");
      go.type = away.type = "button";
      go.textContent = `${title(mark.fault)}  ${mark.start.toFixed(2)} – ${mark.stop.toFixed(2)} s`;
      go.addEventListener("click", () => { video.currentTime = mark.start; go.blur(); });
      away.textContent = "✕";
      away.setAttribute("aria-label", "take this mark away");
      away.addEventListener("click", () => {
        marks.splice(i, 1);
        settle(marks.length ? marks : undefined);
      });
      line.append(go, away);
      return line;
    }));
    const open = start === null ? [] : [{ start, stop: Math.max(start, at()), open: true }];
    const length = video.duration || 1;
    track.replaceChildren(...[...marks, ...open].map((mark) => {
      const bar = document.createElement("i");
      bar.style.left = `${(100 * mark.start) / length}%`;
      bar.style.width = `${(100 * (mark.stop - mark.start)) / length}%`;
      bar.classList.toggle("open", Boolean(mark.open));
      return bar;
    }));
  }
  function step(by) {
    video.pause();
    video.currentTime = Math.max(0, Math.min(video.duration || 0, video.currentTime + by));
  }

  faults.forEach((b) => b.addEventListener("click", () => { choose(b); b.blur(); }));
  const keys = { s: begin, e: end, backspace: undo, 0: clean, arrowleft: () => step(-STEP_S), arrowright: () => step(STEP_S) };
  faults.forEach((b, i) => { keys[i + 1] = () => choose(b); });
  return {
    keys,
    acts: { start: begin, stop: end, undo, clean },
    now() {
      shown.textContent = `${at().toFixed(2)} s`;
      if (start !== null) draw();
    },
    load(ranges) { marks = ranges; settle(marks); },
  };
}
