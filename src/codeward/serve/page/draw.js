// Builds elements from data. Text goes in as text only: nothing a server or a code file says is read as markup.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "onclick") element.addEventListener("click", value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

// The rule of codeward._figures.show_percent.
export const percent = (share) => {
  const value = 100 * share;
  if (value > 0 && value < 0.05) return "<0.1%";
  if (value < 100 && value >= 99.95) return ">99.9%";
  return `${value.toFixed(1)}%`;
};

const list = (names) => (names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}`);
const users = (names) => `${names.length === 1 ? "user" : "users"} ${list(names)}`;

function bar(className, share, mark) {
  const fill = make("div", { class: "fill" });
  fill.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  const track = make("div", { class: "track" }, fill);
  if (mark !== undefined) {
    const line = make("div", { class: "mark" });
    line.style.left = `calc(${mark * 100}% - 1px)`;
    track.append(line);
  }
  return className ? make("div", { class: className, "aria-hidden": "true" }, track) : track;
}

// Who may be behind it: every explanation that fits nearly as well, and who is in all of them.
function explain(verdict) {
  const sure = verdict.suspects.map((suspect) => suspect.user);
  const sets = verdict.suspect_sets;
  if (!sets.length) return [make("p", {}, "No set of users explains it.")];
  if (sets.length === 1 && !verdict.more_sets) return [make("p", {}, `Most probably planted by ${users(sets[0])}.`)];
  const more = verdict.more_sets ? ` (${verdict.more_sets} more are not listed)` : "";
  const named = sure.length ? `All of them have ${users(sure)} in common.` : "They have nobody in common, so nobody is named.";
  return [make("p", {}, `${sets.length + verdict.more_sets} explanations fit about equally well${more}. ${named}`),
    make("ul", { class: "sets" }, sets.map((set) => make("li", {}, set.length ? users(set) : "nobody")))];
}

export function drawSeveral(place, verdicts, pick) {
  const alarms = verdicts.filter((verdict) => verdict.flagged).length;
  const buttons = verdicts.map((verdict, index) => make("li", {}, make("button", { type: "button", class: verdict.flagged ? "button alarm" : "button", "aria-pressed": String(index === 0),
    onclick: (event) => { for (const other of place.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === event.currentTarget)); pick(index); } },
    `${index + 1}: ${verdict.label}${verdict.flagged ? " (alarm)" : ""}`)));
  place.replaceChildren(make("h2", {}, `${verdicts.length} inputs, ${alarms} ${alarms === 1 ? "alarm" : "alarms"}`), make("ul", { class: "rows" }, buttons));
  place.hidden = false;
}

export function drawVerdict(place, verdict, card, source) {
  const flagged = verdict.flagged;
  const stamp = !flagged ? "No alarm" : verdict.attack_probability < 0.5 ? "Alarm: perhaps triggered" : "Triggered input";
  const facts = [];
  if (flagged) {
    facts.push(make("p", { class: "answer" }, "Most probable true label: ", make("b", {}, verdict.label)));
    if (verdict.target !== null && verdict.target !== verdict.label) facts.push(make("p", {}, `The trigger aims at ${verdict.target}.`));
    facts.push(...explain(verdict));
  } else {
    facts.push(make("p", { class: "answer" }, "Label: ", make("b", {}, verdict.label)));
  }
  if (source.note) facts.push(make("p", { class: "hint" }, source.note));
  const gauge = bar(flagged ? "gauge alarm" : "gauge", verdict.attack_probability, card.threshold);
  const certificate = verdict.certificate;
  place.replaceChildren(
    make("h2", {}, "Verdict"),
    make("div", { class: "sum" },
      source.picture ? make("img", { src: source.picture, alt: `The input: ${source.name}` })
        : make("dl", { class: "values", tabindex: "0", "aria-label": "The input" }, Object.entries(source.values || {}).map(([name, value]) => [make("dt", {}, name), make("dd", {}, value === null || value === "" ? "missing" : value)])),
      make("div", {},
        make("p", { class: flagged ? "stamp alarm" : "stamp calm" }, make("span", { "aria-hidden": "true" }, flagged ? "▲" : "✓"), stamp),
        facts, gauge,
        make("p", { class: "hint" }, `Attack probability ${percent(verdict.attack_probability)}; alarm above ${percent(card.threshold)}.`,
          !flagged && verdict.attack_probability > card.threshold ? " All models agree, so no vote speaks for an attack: no alarm." : "",
          verdict.incident === null ? "" : ` Recorded as incident ${verdict.incident}.`))),
    make("dl", { class: "words" },
      make("dt", {}, `Guarantee of the code (threat model: ${verdict.guarantee.threat}, k = ${verdict.guarantee.k})`),
      make("dd", {}, verdict.guarantee.text),
      certificate && make("dt", {}, `Certificate for this input (threat model: ${certificate.threat}, radius ${certificate.radius})`),
      certificate && make("dd", {}, certificate.text),
      flagged ? [make("dt", {}, "Certificate for this input: none"), make("dd", {}, "A certificate speaks of votes nobody tampered with; here, rely on the guarantee.")] : null));
}

export function drawGrid(card, verdict = null) {
  const suspects = new Set(verdict ? verdict.suspects.map((suspect) => suspect.column) : []);
  const hit = new Set(verdict ? verdict.hit_models : []);
  const mark = (column) => (suspects.has(column) ? " suspect" : "");
  const head = make("tr", {}, make("td"), verdict && make("th", { scope: "col" }, "vote"),
    card.user_names.map((name, column) => make("th", { scope: "col", class: mark(column).trim() || null }, name)));
  const rows = card.matrix.map((row, model) => {
    const cells = row.map((value, column) => make("td", { class: (value ? "one" : "zero") + mark(column), title: `model ${card.model_names[model]} ${value ? "learns from" : "never sees"} user ${card.user_names[column]}` }));
    let vote = null;
    if (verdict) {
      const said = verdict.votes[model];
      const kind = said === verdict.label ? "is-label" : said === verdict.target ? "is-target" : "is-other";
      const reached = hit.has(model) ? ", learned from a suspect" : "";
      vote = make("td", { class: "vote" }, make("span", { class: kind, title: `model ${card.model_names[model]} says ${said}${reached}` }, said));
    }
    return make("tr", { class: hit.has(model) ? "hit" : null }, make("th", { scope: "row" }, make("span", { class: "long" }, "model "), card.model_names[model]), vote, cells);
  });
  const name = verdict ? "Votes over the code matrix: one row a model, one column a user" : "The code matrix: one row a model, one column a user";
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, make("table", { class: card.user_names.some((name) => name.length > 4) ? "grid tall" : "grid" }, make("thead", {}, head), make("tbody", {}, rows)));
}

export function drawVotes(place, verdict, card) {
  const against = verdict.votes.filter((vote) => vote !== verdict.label).length;
  const says = verdict.votes.length - against;
  let text = `${says} of ${verdict.votes.length} models say ${verdict.label}.`;
  if (verdict.flagged && verdict.suspect_sets.length) {
    const inside = verdict.hit_models.filter((model) => verdict.votes[model] === verdict.target).length;
    text += ` Of the ${verdict.hit_models.length} that learned from ${users(verdict.suspect_sets[0])}, ${inside} say ${verdict.target}.`;
  }
  const entry = (kind, label) => make("li", {}, make("i", { class: kind, "aria-hidden": "true" }), label);
  const entries = [entry("one", "learns from the user")];
  if (verdict.suspects.length) entries.push(entry("suspect", "learns from a suspect"));
  entries.push(entry("is-label", "votes for the label"));
  if (verdict.target !== null) entries.push(entry("is-target", "votes for the target"));
  if (verdict.votes.some((vote) => vote !== verdict.label && vote !== verdict.target)) entries.push(entry("is-other", "votes otherwise"));
  place.replaceChildren(make("h2", {}, "Votes"), make("p", {}, text), drawGrid(card, verdict), make("ul", { class: "legend" }, entries));
  place.hidden = false;
}

export function drawSuspects(place, verdict, card) {
  const named = new Set(verdict.suspects.map((suspect) => suspect.column));
  const order = verdict.user_probability.map((share, column) => [share, column]).sort((a, b) => b[0] - a[0] || a[1] - b[1]);
  const shown = order.slice(0, 8).filter(([share], index) => share >= 0.001 || index < 3);
  const bars = shown.map(([share, column]) => make("li", { class: named.has(column) ? "suspect" : null },
    make("span", { class: "name" }, `user ${card.user_names[column]}`), bar("", share), make("span", { class: "share" }, percent(share))));
  const rest = order.length - shown.length;
  const spread = [make("ul", { class: "bars" }, bars), rest > 0 ? make("p", { class: "hint" }, `${rest} other users: at most ${percent(order[shown.length][0])} each.`) : null];
  const body = verdict.flagged
    ? [make("p", { class: "hint" }, "Probability that each user is an attacker, given that this is an attack."), ...spread]
    : [make("p", {}, "There is no alarm, so nobody is suspected."), make("details", {}, make("summary", {}, "If it were an attack nevertheless"), ...spread)];
  place.replaceChildren(make("h2", {}, "Suspects"), ...body.filter(Boolean));
  place.hidden = false;
}

export function drawGallery(place, pictures, pick) {
  const parts = [];
  for (const [kind, title] of [["clean", "Clean test images"], ["triggered", "Triggered test images"]]) {
    const chosen = pictures.filter((picture) => picture.kind === kind);
    if (!chosen.length) continue;
    const items = chosen.map((picture) => {
      const name = `${kind} ${picture.label}`;
      const button = make("button", { type: "button", "aria-pressed": "false", title: `true label ${picture.label}` },
        make("img", { src: picture.png, alt: `${kind} test image, true label ${picture.label}` }));
      button.addEventListener("click", () => pick(picture, button, name));
      return make("li", {}, button);
    });
    parts.push(make("h3", {}, title), make("ul", { class: "pictures" }, items));
    const by = [...new Set(chosen.flatMap((picture) => picture.planted_by))];
    if (by.length) parts.push(make("p", { class: "hint" }, `In this simulation the trigger was planted by ${users(by)}.`));
  }
  place.replaceChildren(...parts);
}

export function drawEvidence(place, cases) {
  if (!cases.length) return place.replaceChildren(make("p", { class: "empty" }, "No incidents, no evidence."));
  place.replaceChildren(...cases.map((found) => {
    const likely = Object.entries(found.user_probability).sort((a, b) => b[1] - a[1]).slice(0, 5);
    const chance = found.error_bound >= 1 ? "False alarms alone may well look like this" : `Chance that false alarms alone ever look like this: at most ${percent(found.error_bound)}`;
    const conclusion = found.convicted.length ? `An attack is shown, by ${users(found.convicted)}.`
      : found.attack_shown && Object.keys(found.models_apart).length ? "An attack is shown; others could be behind it if its trigger fails in a few models."
      : found.attack_shown ? "An attack is shown; the attackers are not settled yet."
      : found.incidents_needed ? `An attack is not shown yet: that takes at most ${percent(found.alpha)} for the chance below.` : "An attack cannot be shown with this folder.";
    const needed = found.attack_shown ? ""
      : found.incidents_needed ? ` It takes ${found.incidents_needed} incidents of one target or more, all of them true.`
      : ` Nobody can be convicted: ${found.reference_false_alarms ? "too few clean test inputs" : "no clean test input"} raised an alarm to compare with. Train with more clean test inputs.`;
    return make("div", { class: found.attack_shown ? "case shown" : "case" },
      make("p", {}, make("strong", {}, `Target ${found.target}: `), conclusion),
      make("p", { class: "hint" }, `${found.incidents} distinct ${found.incidents === 1 ? "input" : "inputs"}. ${chance}.${needed}`),
      make("ul", { class: "bars" }, likely.map(([name, share]) => make("li", { class: found.convicted.includes(name) ? "suspect" : null },
        make("span", { class: "name" }, `user ${name}`), bar("", share), make("span", { class: "share" }, percent(share))))));
  }));
}

export function drawIncidents(place, incidents, seen, open) {
  if (!incidents.length) return place.replaceChildren(make("p", { class: "empty" }, "None so far. An input whose attack probability passes the threshold is listed here as soon as it is recorded."));
  const suspected = (found) => found.suspects.join(", ") || (found.suspect_sets.length ? `one of ${found.suspect_sets.length + found.more_sets} sets` : "none");
  const rows = incidents.map((found) => found.damage ? make("tr", {}, make("th", { scope: "row" }, `#${found.id}`), make("td", { colspan: 6 }, `damaged: ${found.damage}`)) : make("tr", { class: found.id > seen ? "fresh" : null },
    make("th", { scope: "row" }, make("button", { type: "button", class: "open-incident", title: `open incident ${found.id}`, onclick: () => open(found) }, `#${found.id}`)),
    make("td", {}, make("time", { datetime: found.time }, new Date(found.time).toLocaleString())),
    make("td", { "data-name": "attack" }, percent(found.attack_probability)),
    make("td", { "data-name": "target" }, found.target === -1 ? "none" : found.target),
    make("td", { "data-name": "label" }, found.label),
    make("td", { "data-name": "suspects" }, suspected(found)),
    make("td", { class: "code", title: found.digest }, found.digest.slice(0, 12))));
  const head = ["Incident", "Time", "Attack probability", "Target", "Decoded label", "Suspects", "Input (SHA-256)"].map((name) => make("th", { scope: "col" }, name));
  place.replaceChildren(make("table", { class: "list" }, make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows)));
}

export function drawIncident(place, found, card, evidence) {
  const columns = new Map(card.user_names.map((name, column) => [name, column]));
  const best = (found.suspect_sets[0] || []).map((name) => columns.get(name));
  const verdict = { ...found, flagged: true, suspects: found.suspects.map((user) => ({ user, column: columns.get(user) })),
    hit_models: card.matrix.flatMap((row, model) => (best.some((column) => row[column]) ? [model] : [])) };
  const votes = make("section"), suspects = make("section"), known = make("div");
  drawVotes(votes, verdict, card);
  drawSuspects(suspects, verdict, card);
  drawEvidence(known, evidence.filter((item) => item.target === found.target));
  place.replaceChildren(
    make("h2", { id: "incident-title" }, `Incident ${found.id}`),
    make("p", {}, make("time", { datetime: found.time }, new Date(found.time).toLocaleString()), `: attack probability ${percent(found.attack_probability)}; target ${found.target === -1 ? "none" : found.target}, decoded label ${found.label}.`),
    ...explain(verdict), votes, suspects,
    make("h2", {}, "All incidents of this target together"), known,
    make("p", { class: "hint code" }, `SHA-256 of the input: ${found.digest}`));
}

// The certificate card of the folder, as card.json has it.
export function drawCertificate(place, told, linked) {
  const count = (share) => (share ? `${percent(share.of ? share.count / share.of : 0)} (${share.count} of ${share.of})` : "none");
  const fact = (name, value) => [make("dt", {}, name), make("dd", {}, value)];
  const curves = told.certified.map((curve) => fact(`Certified accuracy, ${curve.decoder}, ${curve.threat}`, Object.entries(curve.attackers).map(([k, share]) => make("div", {}, `k = ${k}: ${count(share)}`))));
  place.replaceChildren(
    make("h2", {}, "Certificate card"),
    told.warnings.map((text) => make("p", { class: "trouble" }, text)),
    make("dl", { class: "facts" }, fact("Accuracy, clean test inputs", count(told.accuracy)), fact("False alarms, the same", count(told.false_alarms)), curves),
    make("ul", { class: "sets" }, told.guarantees.map((said) => make("li", {}, `${said.threat}: ${said.sentence}`))),
    make("details", {}, make("summary", {}, "What this rests on"), make("dl", { class: "words" }, Object.entries(told.assumed).map(([name, text]) => fact(name, text)))),
    linked ? make("p", { class: "hint" }, make("a", { href: "/card" }, "The card as a page of its own")) : null);
  place.hidden = false;
}

export function drawCard(place, card) {
  const fact = (name, value) => [make("dt", {}, name), make("dd", {}, value)];
  const broken = (name) => {
    const found = card.witness[name];
    if (!found) return "nothing found";
    const [first, second] = found.sets.map((set) => (set.length ? users(set) : "nobody"));
    if (name === "detect") return `${first} can reach every model`;
    return name === "correct_arbitrary" ? `${first} or ${second}: together they reach every model` : `${second} may look like ${first}`;
  };
  const rows = [["Detect a triggered input", "deterministic", "detect"], ["Recover the label", "deterministic", "correct"], ["Recover the label", "arbitrary", "correct_arbitrary"], ["Name the attackers", "deterministic", "track"]]
    .map(([meaning, threat, name]) => make("tr", {}, make("th", { scope: "row" }, meaning), make("td", { "data-name": "threat" }, threat), make("td", { "data-name": "up to k =" }, card.attackers[name]), make("td", { "data-name": "broken by" }, broken(name))));
  const head = ["Guarantee", "Threat model", "Holds up to k", "Broken by"].map((name) => make("th", { scope: "col" }, name));
  place.replaceChildren(
    make("h2", {}, "What the code guarantees"),
    make("p", {}, card.guarantee.text),
    make("dl", { class: "facts" },
      fact("Sub-models", card.models === card.models_lower_bound ? `${card.models}, as few as possible` : `${card.models} (at least ${card.models_lower_bound} are needed)`),
      fact("Users", card.users),
      fact("A model learns from", `at least ${card.row_weight} users (${percent(card.utilization)})`),
      card.construction ? fact("Construction", card.construction) : [],
      fact("Decoder", card.decoder),
      fact("Decoder expects", `up to ${card.expected_attackers} ${card.expected_attackers === 1 ? "attacker" : "attackers"}; alarm above ${percent(card.threshold)}`),
      fact("Models served", make("span", { class: "code" }, card.run)),
      fact("Code digest", make("span", { class: "code" }, card.digest.slice(0, 16)))),
    make("table", { class: "list" }, make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows)),
    make("p", { class: "hint" }, "Deterministic: every model that learned from an attacker says the target. Arbitrary: such models may say anything."),
    card.notes.map((note) => make("p", { class: "hint" }, note)));
}
