#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>

namespace check {

// Sanitizers slow tests down, so the tests repeat less under a sanitizer.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// The thread sanitizer is the slowest one, so the tests also leave out cases
// that cannot cause new races.
#ifdef __SANITIZE_THREAD__
constexpr bool kThreadSanitized = true;
#else
constexpr bool kThreadSanitized = false;
#endif

// qemu-user cannot fork a process with threads and does not report stopped
// children.
inline bool isEmulated() {
  return std::getenv("COMMPROF_EMULATED") != nullptr;
}

inline std::atomic<int> passed{0};
inline std::atomic<int> failed{0};

inline void note(
    bool good,
    const std::string& what,
    const char* file,
    int line) {
  ++(good ? passed : failed);
  if (!good) {
    std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  }
}

template <class A, class B>
void equal(
    const A& actual,
    const B& expected,
    const char* text,
    const char* file,
    int line) {
  std::ostringstream what;
  what << text << " is " << actual << ", not " << expected;
  note(actual == expected, what.str(), file, line);
}

inline int report() {
  std::printf("%d checks passed, %d failed\n", passed.load(), failed.load());
  return failed == 0 ? 0 : 1;
}

} // namespace check

#define CHECK(condition) \
  check::note(bool(condition), "false: " #condition, __FILE__, __LINE__)
#define CHECK_EQ(actual, expected) \
  check::equal(actual, expected, #actual, __FILE__, __LINE__)
#define CHECK_THROWS(type, statement)                                     \
  do {                                                                    \
    bool thrown = false;                                                  \
    try {                                                                 \
      statement;                                                          \
    } catch (const type&) {                                               \
      thrown = true;                                                      \
    }                                                                     \
    check::note(thrown, "no " #type ": " #statement, __FILE__, __LINE__); \
  } while (false)
