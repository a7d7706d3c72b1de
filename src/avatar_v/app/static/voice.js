/* In the thread of the microphone: its samples, 16 kHz, in packets of 40 ms of 16 bits. */
class Voice extends AudioWorkletProcessor {
  constructor() {
    super();
    this.packet = new Int16Array(640);
    this.num = 0;
  }

  process([[samples]]) {
    for (const x of samples ?? new Float32Array(128)) {  // none while the microphone is silent
      this.packet[this.num++] = Math.round(Math.max(-1, Math.min(1, x)) * 32767);
      if (this.num === this.packet.length) {
        this.port.postMessage(this.packet.slice().buffer);
        this.num = 0;
      }
    }
    return true;
  }
}
registerProcessor("voice", Voice);
