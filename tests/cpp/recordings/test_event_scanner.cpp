#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "recordings/event_scanner.h"

using namespace commprof::recordings;

namespace {

EventScanner newScanner() {
  return EventScanner(
      {"kernel", "cpu_op"},
      {"dtype", "Collective name"},
      {"Seq", "External id"},
      "Collective name");
}

const std::string kKernel =
    R"({"ph": "X", "cat": "kernel", "name": "nccl\u0041", "pid": 0, "tid": 20,)"
    R"( "ts": 12.25, "dur": 3, "args": {"stream": 7, "device": "1",)"
    R"( "correlation": 9, "Collective name": "allreduce", "Seq": 4}})";
const std::string kOther = R"({"ph": "i", "cat": "kernel", "name": "x"})";
const std::string kOperator =
    R"({"args": [], "tid": "main", "dur": 0, "ts": 1700000000000000000,)"
    R"( "name": "aten::mm", "cat": "cpu_op", "ph": "X"})";

void eventsBecomeRows() {
  EventScanner scanner = newScanner();
  const std::string text =
      "[" + kKernel + ",\n" + kOther + ", " + kOperator + "]";
  CHECK(scanner.scan(text, 1) == text.size() - 1);
  const EventColumns& events = scanner.events();
  CHECK((events.category == std::vector<int64_t>{0, 1}));
  CHECK((events.startNs == std::vector<int64_t>{12250, 1700000000000000000}));
  CHECK((events.endNs == std::vector<int64_t>{15250, 1700000000000000000}));
  CHECK((events.thread == std::vector<int64_t>{20, -1}));
  CHECK((events.stream == std::vector<int64_t>{7, -1}));
  CHECK((events.device == std::vector<int64_t>{1, -1}));
  CHECK((events.correlation == std::vector<int64_t>{9, -1}));
  CHECK((events.isCollective == std::vector<int64_t>{1, 0}));
  CHECK(scanner.names()[size_t(events.name[0])] == R"("nccl\u0041")");
  const EventScanner::Arguments found = scanner.arguments(text, {0, 1, 0});
  CHECK((found.combination == std::vector<int64_t>{0, 1, 0}));
  CHECK((found.integers == std::vector<int64_t>{4, -1, -1, -1, 4, -1}));
  const std::vector<int64_t>& kept = scanner.combinations()[0];
  CHECK(kept[0] == -1);
  CHECK(scanner.values()[size_t(kept[1])] == "\"allreduce\"");
  CHECK((scanner.combinations()[1] == std::vector<int64_t>{-1, -1}));
}

void copiesAreNamedByTheirKind() {
  const std::string text =
      R"([{"ph": "X", "cat": "kernel", "name": "Memcpy", "ts": 1, "dur": 2,)"
      R"( "args": {"copy kind": "DtoD"}}, )"
      R"({"ph": "X", "cat": "kernel", "name": "Memcpy", "ts": 4, "dur": 2,)"
      R"( "args": {"copy kind": 3}}])";
  EventScanner scanner = newScanner();
  CHECK(scanner.scan(text, 1) == text.size() - 1);
  const std::vector<int64_t>& name = scanner.events().name;
  CHECK(scanner.names()[size_t(name[0])] == R"("Memcpy DtoD")");
  CHECK(scanner.names()[size_t(name[1])] == R"("Memcpy")");
}

void integersAreWholeNumbers() {
  const std::vector<std::pair<std::string, int64_t>> values = {
      {"7", 7},
      {"\"7\"", 7},
      {"-7", -2},
      {"7.0", -2},
      {"true", -2},
      {"\"x\"", -2},
      {"4611686018427387904", -2},
      {"\"\\u0037\"", -3}};
  for (const auto& [value, expected] : values) {
    EventScanner scanner = newScanner();
    std::string event = kKernel;
    event.replace(event.find("4}}"), 1, value);
    CHECK(scanner.scan(event, 0) == event.size());
    CHECK(scanner.arguments(event, {0}).integers[0] == expected);
    CHECK(scanner.argumentsText(event, 0).front() == '{');
  }
}

void namesKeepTheirNumbers() {
  EventScanner scanner = newScanner();
  scanner.scan(kKernel, 0);
  scanner.scan(kOperator, 0);
  CHECK(scanner.events().name[0] == 1);
  scanner.scan(kOperator + kKernel, 0);
  CHECK((scanner.events().name == std::vector<int64_t>{1, 0}));
}

void cutOffEventsAreLeft() {
  for (size_t length = 0; length < kKernel.size(); ++length) {
    EventScanner scanner = newScanner();
    const std::string text = kOther + "," + kKernel.substr(0, length);
    const size_t before = kOther.size() + 1;
    CHECK(scanner.scan(text, 0) == before);
    CHECK(scanner.events().name.empty());
  }
}

void timesAreReadFromTheirDigits() {
  const std::vector<std::pair<const char*, int64_t>> times = {
      {R"("5")", 5'000},
      {R"("1736408883688177.930")", 1'736'408'883'688'177'930},
      {"1736408883688177.931", 1'736'408'883'688'177'931},
      {"1736408883688177.9325", 1'736'408'883'688'177'932},
      {"1736408883688177.9335", 1'736'408'883'688'177'934},
      {"1736408883688177.93350001", 1'736'408'883'688'177'934},
      {"1736408883688177.9999", 1'736'408'883'688'178'000}};
  for (const auto& [token, ns] : times) {
    EventScanner scanner = newScanner();
    std::string event = kOperator;
    const std::string begin = std::string(R"(, "ts": )") + token + "}";
    event.replace(event.size() - 1, 1, begin);
    CHECK(scanner.scan(event, 0) == event.size());
    CHECK(scanner.events().startNs == std::vector<int64_t>{ns});
  }
}

void processesAreNoted() {
  EventScanner scanner = newScanner();
  std::string text;
  for (const char* const process : {"7", "7", R"("[TP01] 9")", "7"}) {
    text += R"({"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "pid": )" +
        std::string(process) + "}";
  }
  CHECK(scanner.scan(text, 0) == text.size());
  const auto& found = scanner.processes();
  CHECK(found.size() == 2);
  CHECK(found[0].second == "7" && found[1].second == R"("[TP01] 9")");
  scanner.scan(kOther, 0);
  CHECK(scanner.processes().empty());
}

void eventsWithoutCategoryAreLeft() {
  EventScanner scanner = newScanner();
  const std::string event = R"({"ph": "X", "name": "a", "ts": 1, "dur": 2})";
  CHECK(scanner.scan(kOther + event, 0) == kOther.size());
  CHECK(scanner.isUnusual());
}

void unusualEventsAreLeft() {
  for (const char* const part :
       {R"("ph": "B")",
        R"("ph": "M", "name": "process_name")",
        R"("ts": "5e3")",
        R"("ts": -1)",
        R"("dur": true)"}) {
    EventScanner scanner = newScanner();
    std::string event = kOperator;
    event.replace(event.size() - 1, 1, std::string(", ") + part + "}");
    CHECK(scanner.scan(kOther + event, 0) == kOther.size());
    CHECK(scanner.isUnusual());
  }
  for (const std::string& damaged :
       {std::string(100000, '{'),
        "{\"a\": " + std::string(100000, '['),
        std::string("{\"a\": \"\\x\"}"),
        std::string("{\"a\": 01}"),
        std::string("{\"a\": 1,}")}) {
    EventScanner scanner = newScanner();
    CHECK(scanner.scan(damaged, 0) == 0);
  }
}

} // namespace

int main() {
  eventsBecomeRows();
  copiesAreNamedByTheirKind();
  integersAreWholeNumbers();
  namesKeepTheirNumbers();
  cutOffEventsAreLeft();
  unusualEventsAreLeft();
  timesAreReadFromTheirDigits();
  eventsWithoutCategoryAreLeft();
  processesAreNoted();
  return check::report();
}
