/* The two boxes that take files: chosen, dropped or recorded ones are sent at once, and the page
   keeps the id that the server answers. The preview plays the browser's own copy. */
window.avatar = { given: { reference: null, speech: null } };
(() => {
  const MIB = 2 ** 20;
  const limit = Number(document.body.dataset.maxMib);

  const boxOf = (name, media) => {
    const box = document.getElementById(`av-${name}`);
    const player = box.querySelector("video, audio"), input = box.querySelector("input[type=file]");
    const note = box.querySelector(".av-note"), sent = box.querySelector(".av-sent");
    const button = box.querySelector(".av-record");
    let sending = null, recorder = null;

    const enter = (state, said = "") => {
      box.dataset.state = state;
      note.textContent = said;
    };

    const clear = () => {
      sending?.abort();
      sending = null;
      avatar.given[name] = null;
      if (player.src.startsWith("blob:")) URL.revokeObjectURL(player.src);
      for (const place of ["src", "poster"]) player.removeAttribute(place);
      player.load();
      enter("empty");
    };

    const show = (id, source, type = "", called = "") => {
      avatar.given[name] = id;
      if (called.endsWith(".person")) return enter("given", `${called} has no picture to show`);
      player[type.startsWith("image/") ? "poster" : "src"] = source;
      enter("given");
    };

    const send = (blob, called) => {
      clear();
      if (blob.size > limit * MIB) {
        const size = (blob.size / MIB).toFixed(1);
        return enter("empty", `${called} has ${size} MiB; at most ${limit} MiB are taken`);
      }
      const request = sending = new XMLHttpRequest();
      const failed = said => { if (sending === request) enter("empty", said); };
      request.open("POST", `files?name=${encodeURIComponent(called)}`);
      request.upload.onprogress = event => { sent.value = event.loaded / event.total; };
      request.onload = () => request.status === 200
        ? show(JSON.parse(request.responseText).id, URL.createObjectURL(blob), blob.type, called)
        : failed(request.responseText);
      request.onerror = () => failed(`${called} could not be sent.`);
      sent.value = 0;
      enter("sending");
      request.send(blob);
    };

    const record = async () => {
      if (recorder) return recorder.stop();
      clear();
      let stream;
      button.disabled = true;  // a second click would ask for a second stream
      try {
        stream = await navigator.mediaDevices.getUserMedia(media);
      } catch (error) {
        return enter("empty", `The browser gives nothing to record (${error.message}).`);
      } finally {
        button.disabled = false;
      }
      const parts = [], muted = player.muted;
      recorder = new MediaRecorder(stream);
      recorder.ondataavailable = event => parts.push(event.data);
      recorder.onstop = () => {
        const type = recorder.mimeType;
        stream.getTracks().forEach(track => track.stop());
        player.srcObject = recorder = null;
        player.muted = muted;
        button.textContent = "Record";
        send(new Blob(parts, { type }), `recorded.${type.includes("mp4") ? "mp4" : "webm"}`);
      };
      player.srcObject = stream;
      player.muted = true;
      player.play().catch(() => {});
      recorder.start();
      button.textContent = "Stop recording";
      enter("recording");
    };

    const took = files => { if (files.length) send(files[0], files[0].name); };

    input.addEventListener("change", () => { took(input.files); input.value = ""; });
    box.querySelector(".av-clear").addEventListener("click", clear);
    button.addEventListener("click", record);
    box.addEventListener("dragover", event => event.preventDefault());
    box.addEventListener("drop", event => { event.preventDefault(); took(event.dataTransfer.files); });
    return { clear, show, note: said => { note.textContent = said; } };
  };

  avatar.boxes = {
    reference: boxOf("reference", { video: true, audio: true }),
    speech: boxOf("speech", { audio: true }),
  };
})();
