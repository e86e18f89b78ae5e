// Runs kernels on several threads. Results do not depend on the number of
// threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commprof::kernels {

// Returns whether a kernel should write `out` with stream(), which bypasses the
// caches. A large result would be evicted from the caches before it is read.
// stream() needs an address aligned to 64 bytes.
inline bool goPastCaches(const float* out, size_t n) {
  constexpr size_t kLeastBytes = size_t(1) << 20;
  return n * sizeof(float) >= kLeastBytes &&
      reinterpret_cast<uintptr_t>(out) % 64 == 0;
}

// Number of values in one piece of a dense kernel's work. It is a multiple of
// every kernel's block size.
inline constexpr size_t kGrain = 256 * 1024;

inline constexpr int kMaxThreads = 256;

// Number of threads that a kernel may use. The default is 1. The environment
// variable COMMPROF_KERNEL_THREADS and setThreads() change it. Both functions
// throw std::invalid_argument if the number is not in 1 to kMaxThreads.
int threads();
void setThreads(int count);

namespace detail {

struct Work {
  size_t n;
  size_t grain;
  const void* body;
  void (*call)(const void* body, size_t begin, size_t end);
};
void runPieces(const Work& work, int threads);

} // namespace detail

// Calls body(begin, end) once for each piece [0, grain), [grain, 2 grain), ...
// of [0, n), on up to `threads` threads. Returns when all pieces are done.
// grain > 0; body must not throw. All threads use the caller's floating-point
// environment.
//
// The threads are started at first use and kept. While they work for one
// caller, any other caller processes all its pieces alone. After a fork, the
// child starts new threads.
template <class Body>
void parallelFor(size_t n, size_t grain, int threads, const Body& body) {
  const auto call = [](const void* erased, size_t begin, size_t end) {
    (*static_cast<const Body*>(erased))(begin, end);
  };
  detail::runPieces({n, grain, &body, call}, threads);
}

// Calls kernel(arguments..., begin, end) for each piece of n values, on up to
// threads() threads.
template <class Kernel, class... Arguments>
void runDense(size_t n, const Kernel& kernel, const Arguments&... arguments) {
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    kernel(arguments..., begin, end);
  });
}

} // namespace commprof::kernels
