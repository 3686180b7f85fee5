import { drawCard, drawCertificate, drawEvidence, drawGallery, drawGrid, drawIncident, drawIncidents, drawSeveral, drawSuspects, drawVerdict, drawVotes, make } from "./draw.js";

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

function complain(error, again = null) {
  const button = again && make("button", { type: "button", class: "button", onclick: again }, "Convert it and check all the same");
  find("trouble").replaceChildren(error ? `That did not work: ${error.message}` : "", button || "");
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
const unjudged = [...find("verdict").children].map((child) => child.cloneNode(true));

// What is shown belongs to what was sent last: nothing of an older input stays beside an error.
function clear() {
  find("verdict").replaceChildren(...unjudged.map((child) => child.cloneNode(true)));
  for (const id of ["votes", "suspects", "several"]) find(id).hidden = true;
}

function present(verdict, source) {
  drawVerdict(find("verdict"), verdict, card, source);
  drawVotes(find("votes"), verdict, card);
  drawSuspects(find("suspects"), verdict, card);
}

async function judge(body, type, source, convert = false) {
  const mine = ++turn;
  complain(null);
  clear();
  try {
    const answer = await ask(`/predict?certify=true${convert ? "&convert=true" : ""}`, { method: "POST", headers: { "Content-Type": type }, body });
    if (mine !== turn) return; // a later pick has overtaken this one
    const verdicts = answer.predictions;
    const describe = (index) => (typeof source === "function" ? source(index) : source);
    if (verdicts.length > 1) drawSeveral(find("several"), verdicts, (index) => present(verdicts[index], describe(index)));
    present(verdicts[0], describe(0));
    if (matchMedia("(max-width: 52rem)").matches) find("verdict").scrollIntoView({ block: "start" });
    if (verdicts.some((verdict) => verdict.incident !== null)) refresh();
  } catch (error) {
    if (mine !== turn) return;
    const converted = () => judge(body, type, { ...source, note: `${source.name}, brought to the size and colours the models read; that may destroy a trigger.` }, true);
    complain(error, !convert && error.message.includes("convert=true") ? converted : null);
  }
}

function press(button) {
  for (const other of document.querySelectorAll(".pictures button")) other.setAttribute("aria-pressed", String(other === button));
}

function pickPicture(picture, button, name) {
  press(button);
  const bytes = Uint8Array.from(atob(picture.png.split(",")[1]), (letter) => letter.charCodeAt(0));
  judge(bytes, "image/png", { picture: picture.png, name, note: `Test image, true label ${picture.label}${picture.kind === "triggered" ? ", with the trigger laid over it" : ""}.` });
}

async function pickFile(file) {
  press(null);
  if (card.input.kind !== "image") return judgeText(await file.text(), file.name);
  try {
    const bitmap = await createImageBitmap(file).catch(() => { throw new Error(`${file.name} is not an image this browser reads`); });
    const scale = Math.min(1, 224 / Math.max(bitmap.width, bitmap.height));
    const paint = (width, height) => {
      const canvas = make("canvas", { width: Math.max(1, Math.round(width)), height: Math.max(1, Math.round(height)) });
      canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
      return canvas;
    };
    const source = { picture: paint(bitmap.width * scale, bitmap.height * scale).toDataURL("image/png"), name: file.name, note: file.name };
    if (["image/png", "image/jpeg"].includes(file.type)) return judge(file, file.type, source);
    const png = await new Promise((done) => paint(bitmap.width, bitmap.height).toBlob(done, "image/png"));
    return judge(png, "image/png", source);
  } catch (error) {
    ++turn;
    clear();
    return complain(error);
  }
}

// The values of a line of CSV; quotes may hold commas.
const cut = (line) => [...line.matchAll(/(?:^|,)(?:"((?:[^"]|"")*)"|([^,]*))/g)].map(([, quoted, plain]) => (quoted === undefined ? plain : quoted.replaceAll('""', '"')).trim());

// Records from a paste box or a file: JSON where it reads like it, else text or CSV.
function judgeText(text, name) {
  const trimmed = text.trim();
  const json = /^[\[{]/.test(trimmed);
  const type = json ? "application/json" : card.input.kind === "text" && !/\.csv$/i.test(name) ? "text/plain" : "text/csv";
  let records = [];
  if (json) {
    try {
      const content = JSON.parse(trimmed);
      records = Array.isArray(content) ? content : content.records || content.texts || [content];
    } catch { records = []; } // the guard says what is wrong with it
  }
  const lines = trimmed.split(/\r?\n/);
  const show = (index) => {
    const record = records[index];
    if (record && typeof record === "object") return { values: record, name };
    if (type !== "text/csv") return { values: { input: record ?? trimmed.slice(0, 400) }, name };
    const names = cut(lines[0]), values = cut(lines[index + 1] ?? "");
    // A line break inside quotes: the line is no row, and is shown as it is.
    return { values: names.length === values.length ? Object.fromEntries(names.map((column, place) => [column, values[place]])) : { input: lines[index + 1] ?? "" }, name };
  };
  judge(json ? trimmed : text, type, show);
}

function buildForm(columns) {
  const field = (column, index) => {
    const id = `column-${index}`;
    const control = column.categories ? make("select", { id }, make("option", { value: "" }, "missing"), column.categories.map((name) => make("option", { value: name }, name)))
      : column.kind === "text" ? make("textarea", { id, rows: 4 })
      : make("input", { id, type: "text", autocomplete: "off", inputmode: column.kind === "numeric" ? "decimal" : null });
    return make("p", {}, make("label", { for: id }, `${column.name} (${column.kind === "numeric" ? "number" : column.kind})`), control);
  };
  const form = find("record");
  form.classList.toggle("many", columns.length > 8);
  form.replaceChildren(...columns.map(field), make("p", { class: "hint" }, "An empty field counts as missing."), make("p", {}, make("button", { class: "button primary" }, "Check this record")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const record = Object.fromEntries(columns.map((column, index) => [column.name, find(`column-${index}`).value.trim() || null]));
    judge(JSON.stringify({ records: [record] }), "application/json", { values: record, name: "record" });
  });
  form.hidden = false;
}

function prepareInput() {
  const { kind, columns, channels, height, width } = card.input;
  if (kind === "image") {
    find("wanted").textContent = `PNG or JPEG of ${width} × ${height} pixels, ${channels === 1 ? "grey" : "colour"}. Others are converted only when you say so.`;
    find("file").accept = "image/*";
  } else {
    find("drop-what").textContent = kind === "features" ? "Drop JSON here" : kind === "text" ? "Drop a text, CSV or JSON file here" : "Drop a CSV or JSON file here";
    const names = columns.map((column) => column.name).join(", ");
    if (columns.length > 12) find("wanted").replaceChildren(make("details", {}, make("summary", {}, `${columns.length} columns`), names));
    else find("wanted").textContent = kind === "features" ? `${columns[0].shape[0]} numbers a row: {"features": [[...]]}` : `Columns: ${names}`;
    find("paste-what").textContent = kind === "features" ? "Paste JSON" : kind === "text" ? "Write or paste a text, or JSON" : "Or paste CSV with a header line, or JSON records";
    if (kind === "table" && columns.length <= 60) buildForm(columns);
    find("paste").addEventListener("submit", (event) => { event.preventDefault(); judgeText(find("pasted").value, "pasted"); });
    find("paste").hidden = false;
  }
  find("drop").hidden = false;
}

find("file").addEventListener("change", (event) => { if (event.target.files[0]) pickFile(event.target.files[0]); event.target.value = ""; });
const drop = find("drop");
for (const name of ["dragenter", "dragover"]) drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
for (const name of ["dragleave", "drop"]) drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.remove("over"); });
drop.addEventListener("drop", (event) => { if (event.dataTransfer.files[0]) pickFile(event.dataTransfer.files[0]); });

// --- incidents, live ---

let drawn = null;
let evidence = [];

function openIncident(found) {
  drawIncident(find("incident-body"), found, card, evidence);
  find("incident").showModal();
}

async function refresh() {
  const live = find("live");
  try {
    const { incidents } = await ask("/incidents?limit=50");
    const latest = incidents.length ? incidents[0].id : 0;
    if (drawn !== latest) {
      drawIncidents(find("incidents"), incidents, drawn === null ? latest : newest, openIncident);
      evidence = (await ask("/evidence")).evidence;
      drawEvidence(find("evidence"), evidence);
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
  find("served").textContent = `${card.dataset}: ${card.models} sub-models of ${card.users} users`;
  prepareInput();
  if (card.certificate_card) drawCertificate(find("certificate"), await ask("/card"), !sessionStorage.getItem("codeward-token"));
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
