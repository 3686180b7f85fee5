"use strict";
// Every table gets two buttons that copy it; what they copy is what `codeward report --format csv|latex` writes.
const LATEX = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "\u00b1": "$\\pm$", "\u2192": "$\\to$", "<": "$<$", ">": "$>$" };
const readText = (element) => element.textContent.trim();

function readTable(box) {
  const heads = [...box.querySelectorAll("thead th")].map(readText);
  const rows = [[box.dataset.group || "group", ...heads, ...heads.slice(1).map((head) => `${head}, of`)]];
  let group = "";
  for (const row of box.querySelectorAll("tbody tr")) {
    if (row.className === "group") { group = readText(row); continue; }
    const mark = row.cells[0].querySelector("span");
    const first = row.cells[0].firstChild.data.trim() + (mark && readText(mark) ? ` (${readText(mark)})` : "");
    const cells = [...row.cells].slice(1);
    const values = cells.map((cell) => {
      if (cell.className === "none" && !cell.title && !("common" in cell.dataset) && readText(cell) === "\u00b7") return "";
      const spread = cell.dataset.spread || readText(cell.querySelector(".spread") || document.createTextNode(""));
      return [cell.firstChild.data.trim(), spread].filter(Boolean).join(" ");
    });
    rows.push([group, first, ...values, ...cells.map((cell) => cell.title || ("common" in cell.dataset ? box.dataset.common : ""))]);
    if (row === row.parentNode.lastElementChild) group = "";
  }
  const kept = rows[0].map((_, i) => i === 1 || rows.slice(1).some((row) => row[i]));
  return rows.map((row) => row.filter((_, i) => kept[i]));
}

function writeCsv(box) {
  const quote = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return readTable(box).map((row) => row.map(quote).join(",") + "\n").join("");
}

function writeLatex(box) {
  const escape = (text) => [...text].map((letter) => LATEX[letter] || ("&%$#_{}".includes(letter) ? `\\${letter}` : letter)).join("");
  const lines = readTable(box).map((row) => row.map(escape).join(" & ") + " \\\\");
  const columns = "l".repeat(readTable(box)[0].length);
  const caption = escape(`${box.dataset.title}. ${box.dataset.note}`.trim());
  return ["\\begin{table}", `\\caption{${caption}}`, `\\begin{tabular}{${columns}}`, "\\toprule", lines[0], "\\midrule",
    ...lines.slice(1), "\\bottomrule", "\\end{tabular}", "\\end{table}", ""].join("\n");
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Where the clipboard is not to be had (older browsers, pages from other machines): by way of a selection.
    const area = document.body.appendChild(document.createElement("textarea"));
    area.value = text; area.select(); document.execCommand("copy"); area.remove();
  }
}

for (const box of document.querySelectorAll(".scroll")) {
  const bar = document.createElement("p");
  bar.className = "copy";
  for (const [name, write] of [["LaTeX", writeLatex], ["CSV", writeCsv]]) {
    const button = bar.appendChild(document.createElement("button"));
    button.type = "button";
    button.textContent = `Copy ${name}`;
    button.setAttribute("aria-label", `Copy ${box.dataset.title} as ${name}`);
    button.addEventListener("click", async () => {
      await copyText(write(box));
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = `Copy ${name}`; }, 1500);
    });
  }
  box.after(bar);
}
