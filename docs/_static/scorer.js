// Sphinx's search, with its weights. Headings that hold the query come first; of pages with the same words those that
// answer come before those that record.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([page, , , , score, , kind]) =>
    score
    + (kind === "title" ? 20 : 0)
    + (page === "questions" ? 3 : page.startsWith("reference/") ? 2 : 0)
    - (/^(decisions|performance|studies\/|auto_gallery\/)/.test(page) ? 11 : 0),
};
