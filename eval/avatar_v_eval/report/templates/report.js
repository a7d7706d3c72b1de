// One click plays all videos of a case from the start, in step with the one that is heard.
const LARGEST_DRIFT_S = 0.06;

for (const button of document.querySelectorAll("button.play")) {
  const videos = [...button.closest(".case").querySelectorAll("video")];
  const leader = videos.find((video) => !video.muted) ?? videos[0];
  const stop = () => {
    videos.forEach((video) => video.pause());
    button.textContent = "Play";
  };
  const start = () => {
    document.dispatchEvent(new CustomEvent("hush", { detail: button }));
    videos.forEach((video) => { video.currentTime = 0; });
    Promise.all(videos.map((video) => video.play())).catch(stop);
    button.textContent = "Stop";
  };
  button.addEventListener("click", () => (leader.paused ? start() : stop()));
  leader.addEventListener("ended", stop);
  leader.addEventListener("timeupdate", () => {
    for (const video of videos) {
      const late = Math.abs(video.currentTime - leader.currentTime) > LARGEST_DRIFT_S;
      if (video !== leader && !video.ended && late) video.currentTime = leader.currentTime;
    }
  });
  document.addEventListener("hush", (event) => { if (event.detail !== button) stop(); });
}
