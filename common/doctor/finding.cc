#include "common/doctor/finding.h"

#include <array>
#include <utility>

#include "common/base/check.h"

namespace luwu::doctor {
namespace {

constexpr std::array kCatalogue = {
    TopicInfo{
        "MEMLOCK", "ERR", "less memory can be locked than RDMA registers",
        "`LimitMEMLOCK=infinity` in the unit (systemd ignores limits.conf), "
        "`ulimit -l unlimited`, in containers `--ulimit memlock=-1`; or `rdma.use = \"off\"`"},
    TopicInfo{"HUGE_PAGES", "WARN",
              "the kernel gives private memory no huge pages: updates are slower",
              "`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`"},
    TopicInfo{"SHARED_HUGE_PAGES", "WARN",
              "the same for weights and inboxes, which are shared memory",
              "`echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled`"},
    TopicInfo{"CLOCK_SOURCE", "WARN",
              "reading the clock is slow, or the kernel gave up the CPU's counter",
              "look for `clocksource` in `dmesg`; choose one that is in `available_clocksource`"},
    TopicInfo{"OPEN_FILES", "ERR", "too few file descriptors for links and regions",
              "`LimitNOFILE=65536` in the unit, or `ulimit -n 65536`"},
    TopicInfo{"MAP_COUNT", "WARN", "a process may have few memory maps",
              "`sysctl vm.max_map_count=65530` or more"},
    TopicInfo{"MEMORY_BUDGET", "ERR", "the budget is more than the host or its cgroup has",
              "lower `memory.budget`, or raise the limit of the container"},
    TopicInfo{"RDMA", "ERR", "a device cannot be used; `ERR` where `rdma.use` is `on`",
              "what the finding says; [rdma.md](rdma.md)"},
    TopicInfo{"CONFIG", "ERR", "the configuration file cannot be used",
              "`luwud --config FILE --check-config` names every error"},
    TopicInfo{"CONTROL_PORT", "ERR", "another program has the address, or it is not of this host",
              "stop that program, or change `control` in all node lists"},
    TopicInfo{"DATA_PORT", "ERR", "the same for the data plane",
              "stop that program, or change `data` in all node lists"},
    TopicInfo{"SHM_SOCKET", "ERR", "the socket cannot be made there",
              "make its folder, writable for the user of luwud; or change `shm`"},
    TopicInfo{"DATA_DIRECTORY", "ERR",
              "it cannot be written to, has little space, or lies in memory or on a network",
              "`storage.path` on a local disk, owned by the user of luwud"},
    TopicInfo{"STORAGE_DIRECT", "WARN",
              "the file system takes no O_DIRECT: everything goes through the page cache",
              "ext4 or xfs on a local disk"},
    TopicInfo{"STORAGE_SPACE", "ERR",
              "the disk has less left than the budget promises; `ERR` when writes wait",
              "free space; `storage.budget` lower where it promises too much, higher where writes "
              "wait for it"},
    TopicInfo{"STORAGE_WRITES", "ERR", "the disk failed, or holds damaged data",
              "look at the daemon's log and the disk's; [storage.md](storage.md)"},
    TopicInfo{"NODE", "ERR", "a daemon of the node list does not answer",
              "start it; open its control port; look at its log"},
    TopicInfo{"NODE_LIST", "ERR", "daemons work with different node lists",
              "equal `[[nodes]]`, in the same order, in all files; restart those that differ"},
    TopicInfo{"VERSION", "WARN", "daemons have different versions",
              "install one version everywhere"},
    TopicInfo{"CLOCK", "WARN",
              "clocks differ by more than a second: times in logs cannot be compared",
              "NTP or chrony on all hosts"},
    TopicInfo{"DATA_REACH", "ERR", "this host cannot connect to the data port of a node",
              "open the port; an address in `data` that trainers can dial"},
    TopicInfo{"PEER_CONTROL", "ERR",
              "a daemon cannot call another, or finds a different node there",
              "open the port; an address in `control` that daemons can dial"},
    TopicInfo{"PEER_DATA", "ERR", "a daemon's host cannot connect to the data port of another",
              "open the port; an address in `data` that all hosts can dial"},
};
static_assert(kCatalogue.size() == static_cast<size_t>(Topic::kPeerData) + 1);

}  // namespace

std::span<const TopicInfo> Catalogue() { return kCatalogue; }

std::string_view NameOf(Topic topic) { return kCatalogue.at(static_cast<size_t>(topic)).name; }

Finding Ok(Topic topic, std::string summary) {
  return {topic, Severity::kOk, std::move(summary), ""};
}

Finding Warn(Topic topic, std::string summary, std::string hint) {
  LUWU_CHECK(!hint.empty(), "a finding without a fix");
  return {topic, Severity::kWarn, std::move(summary), std::move(hint)};
}

Finding Err(Topic topic, std::string summary, std::string hint) {
  LUWU_CHECK(!hint.empty(), "a finding without a fix");
  LUWU_CHECK(kCatalogue.at(static_cast<size_t>(topic)).worst == "ERR", "not as in the catalogue");
  return {topic, Severity::kErr, std::move(summary), std::move(hint)};
}

}  // namespace luwu::doctor
