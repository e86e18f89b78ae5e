// Draws every picture that the page has a place for.

drawTrial();
drawSteps();
drawScaling();
drawTimeline();
drawStepTimes();
drawWaiting();
document.documentElement.dataset.ready = "yes";
