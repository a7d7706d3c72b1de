/* Plays <video data-live="….m3u8"> while the playlist grows (media/files.py: fragmented mp4,
   event playlist). Media Source Extensions where there are any; Safari on phones plays HLS itself.
   A video that leaves the page is let go of. */
(() => {
  const POLL_MS = 250, BEHIND_S = 10;
  const pause = ms => new Promise(resolve => setTimeout(resolve, ms));

  const get = async url => {
    const answer = await fetch(url, { cache: "no-store" });
    return answer.ok ? answer : null;  // 204 of a playlist: its first piece is being made
  };

  /* The codecs of an init segment: the profile and level stand behind "avcC". */
  const codecsOf = bytes => {
    const at = String.fromCharCode(...bytes).indexOf("avcC");
    const hex = [5, 6, 7].map(i => bytes[at + i].toString(16).padStart(2, "0")).join("");
    return `video/mp4; codecs="avc1.${hex}, mp4a.40.2"`;
  };

  const settled = buffer => new Promise((resolve, reject) => {
    buffer.addEventListener("updateend", resolve, { once: true });
    buffer.addEventListener("error", () => reject(new Error("not playable")), { once: true });
  });

  /* Where the browser's memory is full, what was seen makes room. */
  const append = async (buffer, bytes, video) => {
    for (;;) {
      try {
        buffer.appendBuffer(bytes);
        return await settled(buffer);
      } catch (error) {
        if (error.name !== "QuotaExceededError" || !video.isConnected) throw error;
        const end = video.currentTime - BEHIND_S;
        if (end > 0 && buffer.buffered.length && buffer.buffered.start(0) < end) {
          buffer.remove(0, end);
          await settled(buffer);
        } else await pause(1000);
      }
    }
  };

  const start = video => {
    const from = video.buffered.length ? video.buffered.start(0) : 0;  // sound may begin earlier
    if (video.currentTime < from) video.currentTime = from;
    return video.play().catch(() => {
      video.muted = true;  // a browser that allows no sound unasked
      return video.play().catch(() => {});
    });
  };

  const follow = async video => {
    const list = new URL(video.dataset.live, document.baseURI);
    let media = null, buffer = null, given = 0;
    while (video.isConnected) {
      const answer = await get(list);
      if (!answer) return;  // the job is gone
      if (answer.status === 204) {
        await pause(POLL_MS);
        continue;
      }
      if (!("MediaSource" in window)) {
        video.src = list;
        video.dataset.begun = "1";
        return start(video);
      }
      const text = await answer.text();
      if (!media) {
        const init = await get(new URL(text.match(/#EXT-X-MAP:URI="([^"]+)"/)[1], list));
        const bytes = new Uint8Array(await init.arrayBuffer());
        media = new MediaSource();
        video.src = URL.createObjectURL(media);
        await new Promise(open => media.addEventListener("sourceopen", open, { once: true }));
        buffer = media.addSourceBuffer(codecsOf(bytes));
        await append(buffer, bytes, video);
      }
      const pieces = text.split("\n").filter(line => line && !line.startsWith("#"));
      for (; given < pieces.length; given++) {
        const piece = await get(new URL(pieces[given].trim(), list));
        if (!piece) return;
        await append(buffer, await piece.arrayBuffer(), video);
        if (given === 0) {
          video.dataset.begun = "1";
          start(video);
        }
      }
      if (text.includes("#EXT-X-ENDLIST")) return media.endOfStream();
      await pause(POLL_MS);
    }
  };

  window.avatarPlayer = { codecsOf, append, start };

  const look = () => document.querySelectorAll("video[data-live]:not([data-seen])").forEach(video => {
    video.dataset.seen = "1";
    follow(video).catch(error => {
      if (!video.isConnected) return;
      console.error("live playback:", error);
      video.dataset.failed = String(error);
    });
  });
  new MutationObserver(look).observe(document, { childList: true, subtree: true });
})();
