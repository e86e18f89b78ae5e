#include "torch/capture/stacks.h"

#include <pybind11/pybind11.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/json_string.h"
#include "core/recorder.h"

namespace py = pybind11;

namespace commprof {

namespace {

// Number of innermost frames that are kept of a stack.
constexpr size_t kMostFrames = 48;

std::atomic<bool> g_enabled{false};
// Number of further operations whose stacks are recorded; negative: no limit.
std::atomic<int64_t> g_left{-1};

// A frame is a code object and a line. Code objects of known stacks are never
// released, so that their addresses are not reused.
using Frames = std::vector<std::pair<PyCodeObject*, int>>;

// Has its own lock, because free-threaded Python has no GIL. Code that holds
// the lock must not call Python: threads that wait for the lock would delay a
// garbage collection.
struct Interned {
  std::mutex mutex;
  std::map<Frames, uint32_t> numbers;

  uint32_t find(const Frames& frames) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto known = numbers.find(frames);
    return known == numbers.end() ? 0 : known->second;
  }
  // Stores the frames and returns the stack's id. Sets `kept`: true if the
  // table now owns the references; false if another thread stored the same
  // frames first.
  uint32_t keep(const Frames& frames, const std::string& json, bool& kept) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto [place, is_new] =
        numbers.try_emplace(frames, uint32_t(numbers.size()) + 1);
    kept = is_new;
    if (is_new) {
      Recorder::instance().addDocument(
          BlockType::kStack,
          "{\"id\": " + std::to_string(place->second) + ", \"frames\": [" +
              json + "]}");
    }
    return place->second;
  }
};

Interned& interned() {
  static Interned* i = new Interned();
  return *i;
}

// Returns the current thread's frames, innermost first, each with a reference.
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

std::string describe(const Frames& frames) {
  std::string json;
  for (size_t i = 0; i < frames.size(); ++i) {
    const auto& [code, line] = frames[i];
    json += i == 0 ? "" : ", ";
    json += jsonString(
        text(code->co_filename) + ":" + std::to_string(line) + " " +
        text(code->co_name));
  }
  return json;
}

// Returns 0 if there are no frames. A thread in which Python never ran must not
// wait for the GIL, because the holder of the GIL may be waiting for this
// thread.
uint32_t numberOfCurrentStack() {
  if (PyGILState_GetThisThreadState() == nullptr) {
    return 0;
  }
  const py::gil_scoped_acquire gil;
  const Frames frames = currentFrames();
  if (frames.empty()) {
    return 0;
  }
  bool kept = false;
  uint32_t number = interned().find(frames);
  if (number == 0) {
    number = interned().keep(frames, describe(frames), kept);
  }
  if (!kept) {
    for (const auto& frame : frames) {
      Py_DECREF(frame.first);
    }
  }
  return number;
}

} // namespace

bool stacksEnabled() noexcept {
  return g_enabled.load(std::memory_order_relaxed);
}

void setStacks(bool on, uint32_t most) noexcept {
  g_left.store(most == 0 ? -1 : int64_t(most));
  g_enabled.store(on);
}

void recordStack(const Record& issue) {
  if (g_left.load(std::memory_order_relaxed) >= 0 && g_left.fetch_sub(1) <= 1) {
    g_enabled.store(false);
  }
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
