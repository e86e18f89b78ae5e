#include "torch/capture/stacks.h"

#include <pybind11/pybind11.h>

#include <atomic>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/json_string.h"
#include "core/recorder.h"

namespace py = pybind11;

namespace commprof {

namespace {

// Innermost frames that are kept.
constexpr size_t kMostFrames = 48;

std::atomic<bool> g_enabled{false};

// A frame is its code object and the line: two words that compare fast. Code
// objects of known stacks are held for ever, so that their addresses
// are not given to others.
using Frames = std::vector<std::pair<PyCodeObject*, int>>;

// All of this under the GIL.
struct Interned {
  std::map<Frames, uint32_t> numbers;
};

Interned& interned() {
  static Interned* i = new Interned();
  return *i;
}

// The current thread's frames, innermost first; each with a reference.
Frames currentFrames() {
  Frames frames;
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame != nullptr && frames.size() < kMostFrames) {
    frames.emplace_back(PyFrame_GetCode(frame), PyFrame_GetLineNumber(frame));
    PyFrameObject* caller = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = caller;
  }
  Py_XDECREF(frame);
  return frames;
}

std::string text(PyObject* object) {
  const char* utf8 = PyUnicode_AsUTF8(object);
  if (utf8 == nullptr) {
    PyErr_Clear();
    return "?";
  }
  return utf8;
}

std::string describe(uint32_t number, const Frames& frames) {
  std::string json = "{\"id\": " + std::to_string(number) + ", \"frames\": [";
  for (size_t i = 0; i < frames.size(); ++i) {
    const auto& [code, line] = frames[i];
    json += i == 0 ? "" : ", ";
    json += jsonString(
        text(code->co_filename) + ":" + std::to_string(line) + " " +
        text(code->co_name));
  }
  return json + "]}";
}

// 0 where there are no frames.
uint32_t numberOfCurrentStack() {
  const py::gil_scoped_acquire gil;
  Frames frames = currentFrames();
  if (frames.empty()) {
    return 0;
  }
  auto& numbers = interned().numbers;
  const auto known = numbers.find(frames);
  if (known != numbers.end()) {
    for (const auto& frame : frames) {
      Py_DECREF(frame.first);
    }
    return known->second;
  }
  const uint32_t number = uint32_t(numbers.size()) + 1;
  Recorder::instance().addDocument(BlockType::kStack, describe(number, frames));
  numbers.emplace(std::move(frames), number);
  return number;
}

} // namespace

bool stacksEnabled() noexcept {
  return g_enabled.load(std::memory_order_relaxed);
}

void setStacks(bool on) noexcept {
  g_enabled.store(on);
}

void recordStack(const Record& issue) {
  const uint32_t number = numberOfCurrentStack();
  if (number == 0) {
    return;
  }
  Record record;
  record.kind = Kind::kStack;
  record.op_id = issue.op_id;
  record.thread = issue.thread;
  record.timestamp_ns = issue.timestamp_ns;
  record.value = number;
  Recorder::instance().push(record);
}

} // namespace commprof
