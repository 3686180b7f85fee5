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

export function drawVerdict(place, verdict, card, source) {
  const flagged = verdict.flagged;
  const stamp = flagged ? "Triggered input" : "No alarm";
  const suspects = verdict.suspects.map((suspect) => suspect.user);
  const facts = [];
  if (flagged) {
    facts.push(make("p", { class: "answer" }, "Most probable true label: ", make("b", {}, verdict.label)));
    facts.push(make("p", {}, `The trigger aims at ${verdict.target}. `, suspects.length ? `Most probably planted by ${users(suspects)}.` : "No set of users explains it."));
  } else {
    facts.push(make("p", { class: "answer" }, "Label: ", make("b", {}, verdict.label)));
  }
  if (source.note) facts.push(make("p", { class: "hint" }, source.note));
  const gauge = bar(flagged ? "gauge alarm" : "gauge", verdict.attack_probability, card.threshold);
  const certificate = verdict.certificate;
  place.replaceChildren(
    make("h2", {}, "Verdict"),
    make("div", { class: "sum" },
      make("img", { src: source.picture, alt: `The input: ${source.name}` }),
      make("div", {},
        make("p", { class: flagged ? "stamp alarm" : "stamp calm" }, make("span", { "aria-hidden": "true" }, flagged ? "▲" : "✓"), stamp),
        facts, gauge,
        make("p", { class: "hint" }, `Attack probability ${percent(verdict.attack_probability)}; alarm above ${percent(card.threshold)}.`,
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
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, make("table", { class: "grid" }, make("thead", {}, head), make("tbody", {}, rows)));
}

export function drawVotes(place, verdict, card) {
  const against = verdict.votes.filter((vote) => vote !== verdict.label).length;
  const says = verdict.votes.length - against;
  let text = `${says} of ${verdict.votes.length} models say ${verdict.label}.`;
  if (verdict.flagged && verdict.suspects.length) {
    const inside = verdict.hit_models.filter((model) => verdict.votes[model] === verdict.target).length;
    text += ` Of the ${verdict.hit_models.length} that learned from ${users(verdict.suspects.map((suspect) => suspect.user))}, ${inside} say ${verdict.target}.`;
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
      : found.attack_shown ? "An attack is shown; the attackers are not settled yet."
      : `An attack is not shown yet: that takes at most ${percent(found.alpha)} for the chance below.`;
    return make("div", { class: found.attack_shown ? "case shown" : "case" },
      make("p", {}, make("strong", {}, `Target ${found.target}: `), conclusion),
      make("p", { class: "hint" }, `${found.incidents} distinct ${found.incidents === 1 ? "input" : "inputs"}. ${chance}.`),
      make("ul", { class: "bars" }, likely.map(([name, share]) => make("li", { class: found.convicted.includes(name) ? "suspect" : null },
        make("span", { class: "name" }, `user ${name}`), bar("", share), make("span", { class: "share" }, percent(share))))));
  }));
}

export function drawIncidents(place, incidents, seen) {
  if (!incidents.length) return place.replaceChildren(make("p", { class: "empty" }, "None so far. An input whose attack probability passes the threshold is listed here as soon as it is recorded."));
  const rows = incidents.map((found) => found.damage ? make("tr", {}, make("th", { scope: "row" }, `#${found.id}`), make("td", { colspan: 6 }, `damaged: ${found.damage}`)) : make("tr", { class: found.id > seen ? "fresh" : null },
    make("th", { scope: "row" }, `#${found.id}`),
    make("td", {}, make("time", { datetime: found.time }, new Date(found.time).toLocaleString())),
    make("td", { "data-name": "attack" }, percent(found.attack_probability)),
    make("td", { "data-name": "target" }, found.target < 0 ? "none" : found.target),
    make("td", { "data-name": "label" }, found.label),
    make("td", { "data-name": "suspects" }, found.suspects.join(", ") || "none"),
    make("td", { class: "code", title: found.digest }, found.digest.slice(0, 12))));
  const head = ["Incident", "Time", "Attack probability", "Target", "Decoded label", "Suspects", "Input (SHA-256)"].map((name) => make("th", { scope: "col" }, name));
  place.replaceChildren(make("table", { class: "list" }, make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows)));
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
      fact("Decoder expects", `up to ${card.expected_attackers} ${card.expected_attackers === 1 ? "attacker" : "attackers"}; alarm above ${percent(card.threshold)}`),
      fact("Models served", make("span", { class: "code" }, card.run)),
      fact("Code digest", make("span", { class: "code" }, card.digest.slice(0, 16)))),
    make("table", { class: "list" }, make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows)),
    make("p", { class: "hint" }, "Deterministic: every model that learned from an attacker says the target. Arbitrary: such models may say anything."),
    card.notes.map((note) => make("p", { class: "hint" }, note)));
}
