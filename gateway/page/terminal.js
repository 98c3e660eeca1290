// A terminal in a sandbox: xterm on one side, the gateway's WebSocket on the other. A connection that breaks is opened
// again where it was: no byte of output is lost or repeated, nor is one that was typed.

import { call, Problem } from "./api.js";
import { h } from "./dom.js";
import { withSheets } from "./policy.js";

/** The image's bash, else its sh: what the daemon runs `shell` with. */
const OWN_SHELL = 'exec "$0"';
/** Seconds that it lives on without this page: a laptop changes its network. */
const GRACE_S = 60;
const SUBPROTOCOL = "sandman.v1.terminal";
const TRIES = 8;
/** Output that xterm has not drawn yet; more, and the connection waits until it has. */
const UNDRAWN_MAX = 4 * 1024 * 1024;
const UNTAKEN_MAX = 256 * 1024;
const NORMAL = 1000;
const POLICY = 1008;
const TAKEN_OVER = 4001;

const encoder = new TextEncoder();

async function load() {
  try {
    const [xterm, fit] = await Promise.all([import("./vendor/xterm.mjs"), import("./vendor/addon-fit.mjs"), sheet()]);
    return [xterm.Terminal, fit.FitAddon];
  } catch {
    throw new Error("xterm is not part of this gateway: in a checkout “make page” fetches it. Meanwhile: sandman shell.");
  }
}

function sheet() {
  if (document.querySelector("link[data-xterm]")) return null;
  return new Promise((onload, onerror) => {
    document.head.append(h("link", { rel: "stylesheet", href: "vendor/xterm.css", "data-xterm": true, onload, onerror }));
  });
}

export class Terminal {
  /** `tell` gets a line about how it stands. */
  constructor(place, sandbox, tell) {
    this.place = place;
    this.tell = tell;
    this.path = `/v1/sandboxes/${encodeURIComponent(sandbox)}`;
    this.id = `page-${crypto.randomUUID()}`;
    this.offset = 0;
    this.undrawn = 0;
    this.untaken = [];
    this.taken = 0;
    this.isOver = false;
    this.socket = null;
    this.misses = 0;
  }

  async open() {
    const [Screen, Fit] = await load();
    if (this.isOver) return;
    this.screen = withSheets(() => this.made(Screen, new Fit()));
    const { rows, cols } = this.screen;
    await call("POST", `${this.path}/processes`, {
      shell: OWN_SHELL,
      exec_id: this.id,
      attached_grace_s: GRACE_S,
      terminal: { rows, cols },
    });
    if (this.isOver) return this.end();
    await this.connect();
    this.screen?.focus();
  }

  made(Screen, fit) {
    const screen = new Screen({ cursorBlink: false, fontFamily: "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace", fontSize: 13, scrollback: 5000, theme: { background: "#10141f", foreground: "#e6e9f2" } });
    screen.loadAddon(fit);
    screen.open(this.place);
    fit.fit();
    screen.onData((text) => this.type(encoder.encode(text)));
    screen.onBinary((text) => this.type(Uint8Array.from(text, (letter) => letter.charCodeAt(0))));
    screen.onResize(({ rows, cols }) => this.say({ resize: { rows, cols } }));
    screen.attachCustomKeyEventHandler((event) => this.isForScreen(event));
    this.watcher = new ResizeObserver(() => fit.fit());
    this.watcher.observe(this.place);
    return screen;
  }

  /** Tab belongs to the terminal; Shift+F6 is the way out of it. */
  isForScreen(event) {
    if (!(event.key === "F6" && event.shiftKey)) return true;
    document.getElementById("terminal-close").focus();
    return false;
  }

  /** A ticket is good once, for half a minute: the token itself never stands in an address. */
  async connect() {
    const { ticket } = await call("POST", `${this.path}/tickets`, { exec_id: this.id });
    if (this.isOver) return;
    const query = new URLSearchParams({ ticket, exclusive: "1", stdout: String(this.offset) });
    const socket = new WebSocket(`wss://${location.host}${this.path}/processes/${this.id}/terminal?${query}`, SUBPROTOCOL);
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => socket === this.socket && this.hear(data);
    socket.onclose = ({ code, reason }) => socket === this.socket && this.lost(code, reason);
    this.socket = socket;
    // Until it says what it has taken: what is typed meanwhile is kept, and sent then.
    this.isStarted = false;
  }

  hear(data) {
    if (typeof data === "string") return this.heed(JSON.parse(data));
    this.draw(new Uint8Array(data));
  }

  draw(bytes) {
    this.offset += bytes.length;
    this.undrawn += bytes.length;
    this.screen.write(bytes, () => {
      this.undrawn -= bytes.length;
      if (this.isFull && this.undrawn === 0) this.again();
    });
    if (this.undrawn > UNDRAWN_MAX && !this.isFull) {
      // A browser cannot tell a WebSocket to wait. Without a connection the command waits, for its grace.
      this.isFull = true;
      const socket = this.socket;
      this.socket = null;
      socket.close();
    }
  }

  again() {
    this.isFull = false;
    if (!this.isOver) this.connect().catch((error) => this.fail(error));
  }

  heed(message) {
    const [[name, content]] = Object.entries(message);
    if (name === "started") this.started(content);
    else if (name === "taken") this.forgetTo(content.stdin_bytes);
    else if (name === "gap") this.offset = content.to;
    else if (name === "exit") this.finish(content.signal ? `ended by signal ${content.signal}` : `ended with exit code ${content.exit_code}`);
    else if (name === "error") this.finish(`${content.detail} (${content.reason})`);
  }

  started({ stdin_bytes: taken }) {
    this.misses = 0;
    this.forgetTo(taken);
    for (const bytes of this.untaken) this.socket.send(bytes);
    const { rows, cols } = this.screen;
    this.say({ resize: { rows, cols } });
    this.isStarted = true;
    this.tell("connected");
  }

  type(bytes) {
    const kept = this.untaken.reduce((sum, one) => sum + one.length, 0);
    if (this.isOver || kept + bytes.length > UNTAKEN_MAX) return;
    this.untaken.push(bytes);
    if (this.isStarted && this.isConnected()) this.socket.send(bytes);
  }

  /** What was typed up to here has arrived. */
  forgetTo(taken) {
    while (this.untaken.length && this.taken + this.untaken[0].length <= taken) {
      this.taken += this.untaken.shift().length;
    }
    if (this.untaken.length && taken > this.taken) {
      this.untaken[0] = this.untaken[0].subarray(taken - this.taken);
      this.taken = taken;
    }
  }

  isConnected() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  say(message) {
    if (this.isConnected()) this.socket.send(JSON.stringify(message));
  }

  lost(code, reason) {
    this.isStarted = false;
    if (this.isOver) return;
    if (code === TAKEN_OVER) return this.finish("another window has taken this terminal over");
    if (code === POLICY) return this.finish(reason || "the token was revoked, or has expired: log in again");
    if (code !== NORMAL && /^(?!unreachable|outcome_unknown)[a-z_]+: /.test(reason)) return this.finish(reason);
    this.misses += 1;
    if (this.misses > TRIES) return this.finish("the connection broke, and could not be made again");
    this.tell("the connection broke: it is made again…");
    setTimeout(() => this.again(), 250 * 2 ** Math.min(this.misses, 5));
  }

  fail(error) {
    if (this.isOver) return;
    const isFinal = error instanceof Problem && error.status >= 400 && error.status < 500 && error.status !== 429;
    if (isFinal) this.finish(`${error.message} (${error.reason})`);
    else this.lost(0, "");
  }

  /** It has ended, and stays to be read. */
  finish(words) {
    this.isOver = true;
    this.tell(words);
  }

  close() {
    const wasOver = this.isOver;
    this.isOver = true;
    this.watcher?.disconnect();
    this.socket?.close();
    this.screen?.dispose();
    if (!wasOver && this.screen) this.end();
  }

  /** The command's end, not only this page's sight of it. */
  end() {
    call("DELETE", `${this.path}/processes/${this.id}`).catch(() => {});
  }
}
