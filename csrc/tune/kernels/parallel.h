// Kernels on several threads, with results independent of the thread count.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commprof::kernels {

// True if a kernel should bypass the caches when it writes. Results at least as
// large as the L2 cache would be evicted before they are read; non-temporal
// stores avoid reading the lines that they overwrite. `out` must begin at a
// cache line, because stream() writes whole lines.
inline bool goPastCaches(const float* out, size_t n) {
  constexpr size_t kLeastBytes = size_t(1) << 20;
  return n * sizeof(float) >= kLeastBytes &&
      reinterpret_cast<uintptr_t>(out) % 64 == 0;
}

// Number of values in one piece of a dense kernel's work. A piece takes long
// compared with the hand-over to another thread. The number is a multiple of
// every kernel's block size.
inline constexpr size_t kGrain = 256 * 1024;

inline constexpr int kMaxThreads = 256;

// Number of threads that a kernel may use: 1, unless the environment variable
// COMMPROF_KERNEL_THREADS or a call of setThreads() sets another number.
// threads() and setThreads() throw std::invalid_argument, with the value and
// the allowed range.
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
// of [0, n), on the calling thread and up to threads - 1 others, and returns
// when all are done. grain > 0; body must not throw. Neither the pieces nor the
// floating-point environment depend on the number of threads.
//
// The other threads are started on first use and kept. They serve one caller at
// a time; a concurrent or nested caller processes all its pieces itself. After
// a fork, the child starts new threads.
template <class Body>
void parallelFor(size_t n, size_t grain, int threads, const Body& body) {
  const auto call = [](const void* erased, size_t begin, size_t end) {
    (*static_cast<const Body*>(erased))(begin, end);
  };
  detail::runPieces({n, grain, &body, call}, threads);
}

// Calls kernel(arguments..., begin, end) for each piece of a dense kernel's
// work, on threads() threads.
template <class Kernel, class... Arguments>
void runDense(size_t n, const Kernel& kernel, const Arguments&... arguments) {
  parallelFor(n, kGrain, threads(), [&](size_t begin, size_t end) {
    kernel(arguments..., begin, end);
  });
}

} // namespace commprof::kernels
