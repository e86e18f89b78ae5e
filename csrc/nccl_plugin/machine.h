// Facts about this process and its machine, for a trace's metadata.
// commprof/trace/documents.py describes the keys. An unknown fact is an empty
// text.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/json_string.h"

namespace commprof::nccl {

inline std::string contentOf(const std::string& path) {
  std::string content;
  if (std::FILE* file = std::fopen(path.c_str(), "re")) {
    char part[4096];
    size_t length = 0;
    while ((length = std::fread(part, 1, sizeof(part), file)) > 0) {
      content.append(part, length);
    }
    std::fclose(file);
  }
  return content;
}

inline std::string firstLineOf(const std::string& path) {
  const std::string text = contentOf(path);
  return text.substr(0, text.find('\n'));
}

inline std::string linkOf(const char* path) {
  std::error_code error;
  return std::filesystem::read_symlink(path, error).string();
}

inline std::string cpuModel() {
  const std::string text = contentOf("/proc/cpuinfo");
  const size_t key = text.find("model name");
  const size_t colon = key == std::string::npos ? key : text.find(": ", key);
  return colon == std::string::npos
      ? ""
      : text.substr(colon + 2, text.find('\n', colon) - colon - 2);
}

// Returns the number of GPUs that this process can open.
inline int deviceCount() {
  int count = 0;
  for (int i = 0; i < 64; ++i) {
    const std::string device = "/dev/nvidia" + std::to_string(i);
    count += access(device.c_str(), R_OK | W_OK) == 0 ? 1 : 0;
  }
  return count;
}

// Returns the arguments of this process's command line as a JSON list.
inline std::string commandJson() {
  const std::string arguments = contentOf("/proc/self/cmdline");
  std::string list = "[";
  for (size_t begin = 0; begin < arguments.size();) {
    const std::string argument = arguments.c_str() + begin;
    list += (begin == 0 ? "" : ", ") + jsonString(argument);
    begin += argument.size() + 1;
  }
  return list + "]";
}

inline std::string machineJson() {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  cpu_set_t usable;
  CPU_ZERO(&usable);
  sched_getaffinity(0, sizeof(usable), &usable);
  std::string cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &usable)) {
      cpus += (cpus.empty() ? "\"" : ", \"") + std::to_string(cpu) + "\"";
    }
  }
  const auto memory =
      uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGE_SIZE));
  return "{\"hostname\": " + jsonString(host) + ", \"boot_id\": " +
      jsonString(firstLineOf("/proc/sys/kernel/random/boot_id")) +
      ", \"time_namespace\": " + jsonString(linkOf("/proc/self/ns/time")) +
      ", \"pid_namespace\": " + jsonString(linkOf("/proc/self/ns/pid")) +
      ", \"cpu_model\": " + jsonString(cpuModel()) +
      ", \"cpu_count\": " + std::to_string(sysconf(_SC_NPROCESSORS_ONLN)) +
      ", \"usable_cpu_count\": " + std::to_string(CPU_COUNT(&usable)) +
      ", \"usable_cpus\": [" + cpus +
      "], \"memory_bytes\": " + std::to_string(memory) +
      ", \"kernel\": " + jsonString(firstLineOf("/proc/sys/kernel/osrelease")) +
      ", \"cuda_devices\": " + std::to_string(deviceCount()) + "}";
}

} // namespace commprof::nccl
