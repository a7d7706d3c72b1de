/* A conversation: the microphone goes out in packets, typed texts as they are, and the video that
   comes in is played at once, near its end. The form takes a place; closing the socket (Stop, a
   closed page) leaves it. */
(() => {
  const LATE_S = 0.6, JUMP_S = 2, KEEP_S = 20, ALIVE_S = 5;
  const get = id => document.getElementById(id);
  const { codecsOf, append, start } = avatarPlayer, { asked, busy, fail } = avatarForm;
  const screen = get("av-screen"), told = get("av-told"), button = get("av-talk");
  const typed = get("av-typed"), line = typed.querySelector("input");
  let current = null;

  const say = words => {
    const place = document.createElement("div"), line = document.createElement("p");
    place.className = "av-status";
    place.setAttribute("role", "status");
    line.textContent = words;
    place.append(line);
    told.replaceChildren(place);
  };

  const place = async () => {
    const answer = await fetch("live", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(asked()),
    });
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  };

  /* Played a little behind what is there: what has piled up is caught up with. */
  const keepNear = video => {
    const { buffered } = video;
    if (!buffered.length) return;
    const ahead = buffered.end(buffered.length - 1) - video.currentTime;
    if (ahead > JUMP_S) video.currentTime += ahead - LATE_S / 2;
    video.playbackRate = ahead > LATE_S ? 1.05 : 1;
  };

  const player = async video => {
    const media = new MediaSource(), waiting = [];
    video.src = URL.createObjectURL(media);
    await new Promise(open => media.addEventListener("sourceopen", open, { once: true }));
    let buffer = null, head = [], working = false;

    const work = async () => {
      if (working) return;
      working = true;
      while (waiting.length) {
        const bytes = new Uint8Array(await new Blob(waiting.splice(0)).arrayBuffer());
        if (!buffer) {  // the codecs stand in the first bytes, which may come in parts
          head = Uint8Array.from([...head, ...bytes]);
          if (!String.fromCharCode(...head).includes("avcC")) continue;
          buffer = media.addSourceBuffer(codecsOf(head));
          await append(buffer, head, video);
        } else await append(buffer, bytes, video);
        if (!buffer.buffered.length) continue;
        if (!video.dataset.begun) {
          video.dataset.begun = "1";
          start(video);
        }
        keepNear(video);
        const old = video.currentTime - KEEP_S;
        if (old > buffer.buffered.start(0) + KEEP_S) {
          buffer.remove(0, old);
          await new Promise(done => buffer.addEventListener("updateend", done, { once: true }));
        }
      }
      working = false;
    };
    return piece => {
      waiting.push(piece);
      return work();
    };
  };

  /* The microphone, or without one a sign of life. */
  const listen = async (own, microphone, sampleRate, send) => {
    if (!microphone) {
      const alive = setInterval(() => send(new ArrayBuffer(2)), 1000 * ALIVE_S);
      return own.ends.push(() => clearInterval(alive));
    }
    const sound = new AudioContext({ sampleRate });
    own.ends.push(() => sound.close());
    await sound.audioWorklet.addModule("static/voice.js");
    const voice = new AudioWorkletNode(sound, "voice", { numberOfOutputs: 0 });
    sound.createMediaStreamSource(microphone).connect(voice);
    voice.port.onmessage = ({ data }) => send(data);
  };

  /* The line for texts, and who listens, while the conversation lasts; gives what hides it. */
  const type = (send, words, canHear) => {
    const [ask, hush] = typed.querySelectorAll("button");
    const hears = typed.querySelector("[type=checkbox]");
    hears.checked = false;
    hears.parentElement.hidden = !canHear;
    hears.onchange = () => send(JSON.stringify({ listen: hears.checked }));
    const put = () => {
      if (!line.value.trim()) return;
      send(JSON.stringify({ say: line.value }));
      line.dataset.last = line.value;
      line.value = "";
      say(`${words} Stop ends it.`);
    };
    ask.onclick = put;
    hush.onclick = () => send(JSON.stringify({ interrupt: true }));
    line.onkeydown = event => {
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault();  // else the form asks for a video
      put();
    };
    typed.hidden = false;
    say(`${words} Stop ends it.`);
    return () => { typed.hidden = true; };
  };

  const talk = async own => {
    const microphone = await navigator.mediaDevices?.getUserMedia(
      { audio: { echoCancellation: true, noiseSuppression: true, channelCount: 1 } }).catch(() => null);
    const release = () => microphone?.getTracks().forEach(track => track.stop());
    if (own.over) return release();  // Stop, while the browser asked for the microphone
    own.ends.push(release);
    say("Getting ready: reading the clip …");
    const { token, sample_rate_hz: sampleRate } = await place();
    if (own.over) return;
    const video = document.createElement("video");
    video.playsInline = true;
    video.setAttribute("aria-label", "The person whom you talk with");
    const frame = document.createElement("div");
    frame.className = "av-screen";
    frame.append(video);
    screen.replaceChildren(frame);
    const give = await player(video);
    if (own.over) return;
    let socket = null, error = "";
    const send = data => { if (socket?.readyState === WebSocket.OPEN) socket.send(data); };
    await listen(own, microphone, sampleRate, send);
    if (own.over) return;
    socket = new WebSocket(new URL(`live/${token}`, document.baseURI.replace(/^http/, "ws")));
    own.ends.push(() => socket.close());
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      own.ends.push(type(send, microphone ? "Talk, or type." : "There is no microphone: type.",
        Boolean(microphone)));
    };
    await new Promise((done, failed) => {
      socket.onmessage = ({ data }) => {
        if (typeof data !== "string") return give(data).catch(failed);
        const { error: words, refused, ending_s: seconds } = JSON.parse(data);
        if (words) error = words;
        else if (refused) {
          fail(refused);
          line.value ||= line.dataset.last;
        }
        else say(`The page's program ends in ${seconds} s.`);
      };
      socket.onclose = () => done();
    });
    if (!own.over) throw new Error(error || "The connection has ended.");
  };

  const end = () => {
    const own = current;
    current = null;
    if (!own) return;
    own.over = true;
    for (const close of own.ends) close();
    button.disabled = false;
    busy(false);
  };

  button.addEventListener("click", async () => {
    if (current || avatarForm.isMaking()) return;
    const own = current = { ends: [], over: false };
    button.disabled = true;
    busy(true);
    told.replaceChildren();
    try {
      await talk(own);
    } catch (error) {
      if (!own.over) fail(error.message);
    } finally {
      if (current === own) end();
    }
  });
  get("av-stop").addEventListener("click", end);
})();
