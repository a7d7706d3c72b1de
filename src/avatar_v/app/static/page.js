/* The form: what it sends, and what a job answers line by line until it is over. Closing the request
   (Stop, a closed page) ends the job. */
(() => {
  const get = id => document.getElementById(id);
  const form = get("av-form"), screen = get("av-screen"), told = get("av-told");
  const make = get("av-make"), stop = get("av-stop"), draw = get("av-drawn");
  const number = id => Number.isFinite(get(id).valueAsNumber) ? get(id).valueAsNumber : null;
  const ticked = id => document.querySelector(`#${id} input`).checked;
  let job = null;

  const asked = () => ({
    ...avatar.given,
    consent: ticked("av-consent"),
    prompt: get("av-prompt").value,
    new_scene: ticked("av-new-scene"),
    num_steps: number("av-steps"),
    guidance_audio: number("av-guidance"),
    reference_s: number("av-seconds"),
    seed: number("av-seed"),
    weights: get("av-weights")?.value ?? null,
  });

  get("av-weights")?.addEventListener("change", event => {
    for (const [name, value] of Object.entries(event.target.selectedOptions[0].dataset)) {
      const slider = get(`av-${name}`);
      slider.value = value;
      slider.dispatchEvent(new Event("input", { bubbles: true }));  // its number is shown
    }
  });

  const fail = said => {
    const place = document.createElement("div"), line = document.createElement("p");
    place.className = "av-status av-failed";
    place.setAttribute("role", "alert");
    line.textContent = said;
    place.append(line);
    told.replaceChildren(place);
  };

  const busy = is => {
    make.disabled = is;
    stop.disabled = !is;
  };

  const show = state => {
    if (state.screen !== null) screen.innerHTML = state.screen;  // made by the server, escaped there
    told.innerHTML = state.status;
    return state.over;
  };

  const follow = async body => {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "", over = false;
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (text + value).split("\n");
      text = lines.pop();
      for (const line of lines) over = show(JSON.parse(line));
    }
    if (!over) throw new Error("The page's program has ended.");
  };

  const run = async () => {
    const own = job = new AbortController();
    busy(true);
    screen.innerHTML = get("av-empty").innerHTML;
    told.innerHTML = get("av-reading").innerHTML;
    try {
      const answer = await fetch("jobs", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(asked()),
        signal: own.signal,
      });
      if (!answer.ok) throw new Error(await answer.text());
      await follow(answer.body);
    } catch (error) {
      if (!own.signal.aborted) fail(error.message);
    } finally {
      if (job === own) {
        job = null;
        busy(false);
      }
    }
  };

  const drawn = async () => {
    draw.disabled = true;
    try {
      const answer = await fetch("drawn", { method: "POST" });
      if (!answer.ok) throw new Error(await answer.text());
      const ids = await answer.json();
      for (const [name, box] of Object.entries(avatar.boxes)) {
        box.clear();
        box.show(ids[name], `files/${ids[name]}`);
      }
    } catch (error) {
      fail(error.message);
    } finally {
      draw.disabled = false;
    }
  };

  const say = async () => {
    const box = avatar.boxes.speech, button = get("av-say");
    button.disabled = true;
    try {
      const answer = await fetch("speech", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ text: get("av-script").value }),
      });
      if (!answer.ok) throw new Error(await answer.text());
      const { speech } = await answer.json();
      box.clear();
      box.show(speech, `files/${speech}`);
    } catch (error) {
      box.note(error.message);
    } finally {
      button.disabled = false;
    }
  };

  window.avatarForm = { asked, busy, fail, isMaking: () => job !== null };
  get("av-say").addEventListener("click", say);
  form.addEventListener("submit", event => { event.preventDefault(); run(); });
  draw.addEventListener("click", drawn);
  stop.addEventListener("click", () => {
    job?.abort();
    busy(false);
    screen.innerHTML = get("av-empty").innerHTML;
    told.innerHTML = get("av-stopped").innerHTML;
  });
  for (const range of form.querySelectorAll("input[type=range]")) {
    const shown = range.closest("label").querySelector("output");
    const write = () => { shown.value = range.value; };
    range.addEventListener("input", write);
    write();
  }
})();
