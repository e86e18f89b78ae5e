#include "replay/moved_events.h"

#include <algorithm>

namespace commprof::replay {

std::vector<int64_t> lastUntil(
    std::span<const double> edges,
    std::span<const int64_t> first,
    std::span<const double> values,
    std::span<const int64_t> cuts) {
  std::vector<int64_t> found(values.size());
  for (size_t rank = 0; rank + 1 < first.size(); rank++) {
    int64_t edge = first[rank];
    for (int64_t k = cuts[rank]; k < cuts[rank + 1]; k++) {
      const double value = values[size_t(k)];
      while (edge + 1 < first[rank + 1] && edges[size_t(edge + 1)] <= value) {
        edge++;
      }
      found[size_t(k)] = edge;
    }
  }
  return found;
}

void moveEvents(
    const Cuts& cuts,
    const Moments& events,
    std::span<const double> wanted,
    std::span<double> result) {
  std::vector<double> factor(wanted.size(), 0.0);
  for (size_t k = 0; k < cuts.cell.size(); k++) {
    if (cuts.cell[k] >= 0) {
      factor[size_t(cuts.cell[k])] += cuts.length[k];
    }
  }
  for (size_t cell = 0; cell < factor.size(); cell++) {
    factor[cell] = factor[cell] > 0 ? wanted[cell] / factor[cell] : 1.0;
  }
  constexpr int64_t kIssue = 0;
  std::vector<double> moved;
  for (size_t rank = 0; rank + 1 < cuts.first.size(); rank++) {
    const size_t begin = size_t(cuts.first[rank]);
    const size_t count = size_t(cuts.first[rank + 1]) - begin;
    if (count == 0) {
      continue;
    }
    const double* edges = cuts.edge.data() + begin;
    moved.resize(count);
    double since = 0.0;
    for (size_t cut = 0; cut < count; cut++) {
      moved[cut] = edges[0] + since;
      const int64_t cell = cuts.cell[begin + cut];
      const double length = cuts.length[begin + cut];
      since += cell >= 0 ? length * factor[size_t(cell)] : length;
    }
    size_t at = 0, issue = 0;
    for (int64_t k = events.first[rank]; k < events.first[rank + 1]; k++) {
      const double own = events.own[size_t(k)];
      if (events.kind[size_t(k)] == kIssue) {
        while (issue + 1 < count && !cuts.isIssue[begin + issue]) {
          issue++;
        }
        result[size_t(k)] = moved[issue];
        issue++;
        continue;
      }
      while (at + 1 < count && edges[at + 1] <= own) {
        at++;
      }
      const double beyond = own - edges[at];
      const bool within = at + 1 < count && beyond > 0;
      result[size_t(k)] = within
          ? (moved[at + 1] - moved[at]) / (edges[at + 1] - edges[at]) * beyond +
              moved[at]
          : moved[at];
    }
  }
}

} // namespace commprof::replay
