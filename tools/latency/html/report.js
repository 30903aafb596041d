// Shows and hides the series of a chart by its legend. The report is whole without it.
"use strict";
for (const chart of document.querySelectorAll("figure.chart")) {
  for (const button of chart.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      const series = chart.querySelector('.series[data-series="' + button.dataset.series + '"]');
      if (series) series.classList.toggle("hidden", !shown);
    });
  }
}
document.documentElement.dataset.ready = "1";
