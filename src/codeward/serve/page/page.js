import { drawCard, drawEvidence, drawGallery, drawGrid, drawIncidents, drawSuspects, drawVerdict, drawVotes, make } from "./draw.js";

const POLL = 2000;
const find = (id) => document.getElementById(id);
let card = null;
let newest = 0;
let asked = null;

// --- talking to the guard ---

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  const token = sessionStorage.getItem("codeward-token");
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) {
    await askToken(Boolean(token));
    return ask(path, options);
  }
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(content.detail || `the guard answered ${answer.status}`);
  return content;
}

function askToken(wrong) {
  sessionStorage.removeItem("codeward-token");
  asked ??= new Promise((done) => {
    const dialog = find("ask-token");
    find("ask-title").textContent = wrong ? "That token is not accepted" : "This guard asks for a token";
    dialog.addEventListener("close", () => {
      sessionStorage.setItem("codeward-token", find("token").value.trim());
      find("token").value = "";
      asked = null;
      done();
    }, { once: true });
    if (!dialog.open) dialog.showModal();
  });
  return asked;
}

function complain(error) {
  find("trouble").textContent = error ? `That did not work: ${error.message}` : "";
  find("trouble").hidden = !error;
}

// --- views ---

const tabs = [...document.querySelectorAll("[role=tab]")];

function show(tab, focus = false) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    find(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (focus) tab.focus();
  history.replaceState(null, "", `#${tab.id.slice(4)}`);
}

tabs.forEach((tab, index) => {
  tab.addEventListener("click", () => show(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next = event.key === "Home" ? 0 : event.key === "End" ? tabs.length - 1 : step ? (index + step + tabs.length) % tabs.length : null;
    if (next === null) return;
    event.preventDefault();
    show(tabs[next], true);
  });
});

// --- judging ---

let turn = 0;

async function judge(body, source) {
  const mine = ++turn;
  complain(null);
  try {
    const answer = await ask("/predict?certify=true", { method: "POST", headers: { "Content-Type": "image/png" }, body });
    if (mine !== turn) return; // a later pick has overtaken this one
    const verdict = answer.predictions[0];
    drawVerdict(find("verdict"), verdict, card, source);
    drawVotes(find("votes"), verdict, card);
    drawSuspects(find("suspects"), verdict, card);
    if (matchMedia("(max-width: 52rem)").matches) find("verdict").scrollIntoView({ block: "start" });
    if (verdict.incident !== null) refresh();
  } catch (error) {
    if (mine === turn) complain(error);
  }
}

function press(button) {
  for (const other of document.querySelectorAll(".pictures button")) other.setAttribute("aria-pressed", String(other === button));
}

function pickPicture(picture, button, name) {
  press(button);
  const bytes = Uint8Array.from(atob(picture.png.split(",")[1]), (letter) => letter.charCodeAt(0));
  judge(bytes, { picture: picture.png, name, note: `Test image, true label ${picture.label}${picture.kind === "triggered" ? ", with the trigger laid over it" : ""}.` });
}

async function pickFile(file) {
  press(null);
  try {
    const bitmap = await createImageBitmap(file).catch(() => { throw new Error(`${file.name} is not an image this browser reads`); });
    const { width, height } = card.image;
    const canvas = make("canvas", { width, height });
    canvas.getContext("2d").drawImage(bitmap, 0, 0, width, height);
    const source = { picture: canvas.toDataURL("image/png"), name: file.name, note: file.name };
    if (file.type === "image/png" && bitmap.width === width && bitmap.height === height) return judge(file, source);
    const scaled = await new Promise((done) => canvas.toBlob(done, "image/png"));
    source.note = `${file.name}, resized by this browser from ${bitmap.width} × ${bitmap.height} to ${width} × ${height}; resizing may destroy a trigger.`;
    return judge(scaled, source);
  } catch (error) {
    return complain(error);
  }
}

find("file").addEventListener("change", (event) => { if (event.target.files[0]) pickFile(event.target.files[0]); event.target.value = ""; });
const drop = find("drop");
for (const name of ["dragenter", "dragover"]) drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
for (const name of ["dragleave", "drop"]) drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.remove("over"); });
drop.addEventListener("drop", (event) => { if (event.dataTransfer.files[0]) pickFile(event.dataTransfer.files[0]); });

// --- incidents, live ---

let drawn = null;

async function refresh() {
  const live = find("live");
  try {
    const { incidents } = await ask("/incidents?limit=50");
    const latest = incidents.length ? incidents[0].id : 0;
    if (drawn !== latest) {
      drawIncidents(find("incidents"), incidents, drawn === null ? latest : newest);
      drawEvidence(find("evidence"), (await ask("/evidence")).evidence);
      find("count").textContent = incidents.length >= 50 ? "50+" : String(incidents.length);
      find("count").hidden = !incidents.length;
      drawn = newest = latest;
    }
    if (live.classList.contains("off") || !live.textContent) live.textContent = "live";
    live.classList.remove("off");
  } catch (error) {
    live.textContent = "the guard cannot be reached";
    live.classList.add("off");
  }
}

async function poll() {
  if (!document.hidden) await refresh();
  setTimeout(poll, POLL);
}

// --- start ---

try {
  card = await ask("/code");
  const { channels, height, width } = card.image;
  find("served").textContent = `${card.dataset}: ${card.models} sub-models of ${card.users} users`;
  find("wanted").textContent = `The models read ${width} × ${height} pixels, ${channels === 1 ? "grey" : "colour"}. Other sizes are resized here.`;
  drawCard(find("card"), card);
  find("matrix").replaceChildren(make("h2", {}, "Which model learns from which user"), drawGrid(card));
  drawGallery(find("gallery"), (await ask("/gallery")).pictures, pickPicture);
  const wanted = find(`tab-${location.hash.slice(1)}`);
  if (wanted) show(wanted);
  document.documentElement.dataset.ready = "yes";
  poll();
} catch (error) {
  complain(error);
}
