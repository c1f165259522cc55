#include "tests/bench/machine.h"

#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

namespace luwu::bench {
namespace {

constexpr char kModelKey[] = "model name";

double SecondsOf(int who) {
  rusage usage = {};
  getrusage(who, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

double OwnSeconds() { return SecondsOf(RUSAGE_SELF) + SecondsOf(RUSAGE_CHILDREN); }

// Of all CPUs since boot, from the first line of /proc/stat: user, nice, system, idle, iowait, irq,
// softirq, steal.
void ReadCpuTime(double* busy_s, double* total_s) {
  std::ifstream file("/proc/stat");
  std::string word;
  file >> word;
  const double tick_s = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
  *busy_s = *total_s = 0;
  for (int column = 0; column < 8; ++column) {
    double ticks = 0;
    file >> ticks;
    const bool idle = column == 3 || column == 4;
    *total_s += ticks * tick_s;
    if (!idle) *busy_s += ticks * tick_s;
  }
}

}  // namespace

MachineInfo DescribeMachine() {
  MachineInfo info;
  info.cpus = std::thread::hardware_concurrency();
  info.memory_bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line) && info.cpu_model.empty();) {
    const size_t colon = line.find(": ");
    if (line.starts_with(kModelKey) && colon != std::string::npos) {
      info.cpu_model = line.substr(colon + 2);
    }
  }
  utsname name = {};
  if (uname(&name) == 0) info.kernel = name.release;
  return info;
}

Json ToJson(const MachineInfo& machine) {
  return {{"cpus", machine.cpus},
          {"cpu_model", machine.cpu_model},
          {"memory_bytes", machine.memory_bytes},
          {"kernel", machine.kernel}};
}

OthersMeter::OthersMeter() : own_s_(OwnSeconds()) { ReadCpuTime(&busy_s_, &total_s_); }

double OthersMeter::Share() const {
  double busy_s = 0;
  double total_s = 0;
  ReadCpuTime(&busy_s, &total_s);
  const double elapsed_s = total_s - total_s_;
  if (elapsed_s <= 0) return 0;
  return std::clamp((busy_s - busy_s_ - (OwnSeconds() - own_s_)) / elapsed_s, 0.0, 1.0);
}

}  // namespace luwu::bench
