#include "tune/kernels/parallel.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cfenv>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>

#include "base/threads.h"

namespace commprof::kernels {

namespace {

int checkedCount(int count, const char* source, const std::string& value) {
  if (count < 1 || count > kMaxThreads) {
    throw std::invalid_argument(
        std::string(source) + " is \"" + value +
        "\"; allowed: a whole number from 1 to " + std::to_string(kMaxThreads));
  }
  return count;
}

int initialThreads() {
  constexpr const char* kVariable = "COMMPROF_KERNEL_THREADS";
  const char* text = std::getenv(kVariable);
  if (text == nullptr || *text == '\0') {
    return 1;
  }
  int count = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, count);
  const bool whole = error == std::errc() && stop == end;
  return checkedCount(whole ? count : 0, kVariable, text);
}

// 0 until the first use.
std::atomic<int> allowed_threads{0};

struct Job {
  const detail::Work& work;
  std::atomic<size_t> next{0}; // index at which the next piece begins
  std::fenv_t environment{}; // floating-point environment of the caller

  void run() {
    const size_t n = work.n;
    for (;;) {
      const size_t begin =
          next.fetch_add(work.grain, std::memory_order_relaxed);
      if (begin >= n) {
        return;
      }
      work.call(work.body, begin, begin + std::min(work.grain, n - begin));
    }
  }
};

// Threads that run jobs and end with the process. Only one thread at a time may
// call run().
class Pool {
 public:
  // Runs a job. Returns when all pieces are done, even if a helper has not
  // woken up yet.
  void run(Job& job, int helpers) {
    startUpTo(helpers);
    std::fegetenv(&job.environment);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      seats_ = helpers;
    }
    for (int i = 0; i < helpers; ++i) {
      wake_.notify_one();
    }
    job.run();
    std::unique_lock<std::mutex> lock(mutex_);
    job_ = nullptr;
    idle_.wait(lock, [this] { return active_ == 0; });
  }

 private:
  // If the system refuses to start a thread, fewer threads share the work.
  void startUpTo(int count) {
    try {
      for (; started_ < count; ++started_) {
        startHelper("commprof-kernel", [this] { serve(); })->detach();
      }
    } catch (const std::system_error&) {
    }
  }

  [[noreturn]] void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return job_ != nullptr && seats_ > 0; });
      Job& job = *job_;
      --seats_;
      ++active_;
      lock.unlock();
      std::fesetenv(&job.environment);
      job.run();
      lock.lock();
      --active_;
      if (active_ == 0) {
        idle_.notify_one();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  Job* job_ = nullptr;
  int seats_ = 0; // how many more threads may work on the job
  int active_ = 0; // how many threads are working on the job
  int started_ = 0; // number of started threads; only run() uses it
};

std::atomic<bool> pool_taken{false};
// Accessed only by the thread that has set pool_taken.
Pool* pool = nullptr;
Pool* left_behind = nullptr;

// A forked child has none of the threads, so it makes a new pool. The old pool
// stays reachable, so that leak checkers do not report it.
void afterForkInChild() {
  left_behind = pool;
  pool = nullptr;
  pool_taken.store(false, std::memory_order_relaxed);
}

Pool& takenPool() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, &afterForkInChild);
  static_cast<void>(registered);
  if (pool == nullptr) {
    pool = new Pool();
  }
  return *pool;
}

} // namespace

int threads() {
  int count = allowed_threads.load(std::memory_order_relaxed);
  if (count == 0) {
    count = initialThreads();
    allowed_threads.store(count, std::memory_order_relaxed);
  }
  return count;
}

void setThreads(int count) {
  allowed_threads.store(
      checkedCount(count, "the number of threads", std::to_string(count)),
      std::memory_order_relaxed);
}

void detail::runPieces(const Work& work, int threads) {
  assert(work.grain > 0);
  Job job{work};
  const size_t pieces = work.n / work.grain + (work.n % work.grain != 0);
  const int helpers = int(std::min(size_t(std::max(threads, 1)), pieces)) - 1;
  if (helpers > 0 && !pool_taken.exchange(true, std::memory_order_acquire)) {
    takenPool().run(job, helpers);
    pool_taken.store(false, std::memory_order_release);
  } else {
    job.run();
  }
}

} // namespace commprof::kernels
