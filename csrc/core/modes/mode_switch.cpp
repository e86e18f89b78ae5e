#include "core/modes/mode_switch.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "base/clock.h"

namespace commprof {

namespace {

constexpr uint64_t kReadEveryNs = 900'000'000;

std::atomic<uint64_t> signals{0};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

void countSignal(int) {
  signals.fetch_add(1, std::memory_order_relaxed);
}

} // namespace

bool ModeSwitch::countSignals(int number) noexcept {
  struct sigaction before{};
  if (sigaction(number, nullptr, &before) != 0) {
    return false;
  }
  if ((before.sa_flags & SA_SIGINFO) == 0 &&
      before.sa_handler == &countSignal) {
    return true;
  }
  if ((before.sa_flags & SA_SIGINFO) != 0 || before.sa_handler != SIG_DFL) {
    return false;
  }
  struct sigaction ours{};
  ours.sa_handler = &countSignal;
  ours.sa_flags = SA_RESTART; // interrupted system calls are restarted
  sigemptyset(&ours.sa_mask);
  return sigaction(number, &ours, nullptr) == 0;
}

void ModeSwitch::watch(const std::string& path) {
  path_ = path;
  last_check_ns_ = 0;
  seen_ = {};
  signals_ = signals.load();
}

std::optional<Mode> ModeSwitch::poll(Mode current) {
  const uint64_t signalled = signals.load();
  if (signalled != signals_) {
    signals_ = signalled; // several signals between two polls count as one
    writeFile(nextMode(current));
    return nextMode(current);
  }
  const uint64_t now_ns = nowNs();
  if (path_.empty() ||
      (last_check_ns_ != 0 && now_ns - last_check_ns_ < kReadEveryNs)) {
    return std::nullopt;
  }
  last_check_ns_ = now_ns;
  return changed() ? readFile() : std::nullopt;
}

bool ModeSwitch::changed() noexcept {
  struct stat status{};
  if (stat(path_.c_str(), &status) != 0) {
    return false;
  }
  const Version found{
      int64_t(status.st_mtim.tv_sec),
      int64_t(status.st_mtim.tv_nsec),
      uint64_t(status.st_ino),
      uint64_t(status.st_size)};
  // If the file is empty, another process is about to write it.
  if (found == seen_ || found.bytes == 0) {
    return false;
  }
  seen_ = found;
  return true;
}

std::optional<Mode> ModeSwitch::readFile() {
  char word[32] = ""; // longer than any name of a mode
  if (std::FILE* file = std::fopen(path_.c_str(), "re")) {
    if (std::fscanf(file, "%31s", word) != 1) {
      word[0] = '\0';
    }
    std::fclose(file);
  }
  const std::optional<Mode> mode = modeNamed(word);
  if (!mode) {
    std::fprintf(
        stderr,
        "commprof: %s does not name a mode (allowed: off, always-on, full); "
        "write one of these into the file. Until then the mode does not "
        "change.\n",
        path_.c_str());
  }
  return mode;
}

// Replaces the file in one step, because all ranks may read it now.
void ModeSwitch::writeFile(Mode mode) noexcept {
  if (path_.empty()) {
    return;
  }
  try {
    const std::string partial = path_ + "." + std::to_string(getpid());
    std::FILE* file = std::fopen(partial.c_str(), "we");
    if (file == nullptr) {
      return;
    }
    std::fprintf(file, "%s\n", modeName(mode));
    if (std::fclose(file) == 0 &&
        std::rename(partial.c_str(), path_.c_str()) == 0) {
      changed(); // marks this version as seen
    } else {
      std::remove(partial.c_str());
    }
  } catch (const std::exception&) {
  }
}

} // namespace commprof
