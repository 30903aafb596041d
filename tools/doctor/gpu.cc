#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/doctor/doctor.h"
#include "tools/doctor/host_facts.h"
#include "tools/doctor/rdma.h"

namespace fastdecode {

namespace {

constexpr char kPci[] = "/sys/bus/pci/devices/";
constexpr int kDriverOfDmaBuf = 515;

// Whether the running kernel is at least `major`.`minor`.
bool KernelIsAtLeast(const SysRoot& root, int major, int minor) {
  std::istringstream release(root.Text("/proc/sys/kernel/osrelease").value_or(""));
  int found_major = 0, found_minor = 0;
  char dot;
  release >> found_major >> dot >> found_minor;
  return found_major > major || (found_major == major && found_minor >= minor);
}

void ExamineDriver(const std::optional<NvidiaDriver>& driver, bool has_gpu, CheckList* list) {
  constexpr char kName[] = "NVIDIA driver";
  if (!driver && !has_gpu) {
    list->Ok(kName, "no GPU here; the S-Part runs on the CPU");
  } else if (!driver) {
    list->Warning(kName, "not loaded, though there is a GPU", "install the driver, then `modprobe nvidia`");
  } else {
    list->Ok(kName, absl::StrCat(driver->version, driver->open ? ", open kernel module" : ", closed kernel module"));
  }
}

void ExamineGpuPlace(const SysRoot& root, const std::string& address, const std::vector<RdmaDevice>& devices,
                     CheckList* list) {
  const std::string name = absl::StrCat("GPU ", address);
  const std::string model = GpuModel(root, address);
  const int node = static_cast<int>(root.Number(absl::StrCat(kPci, address, "/numa_node")).value_or(-1));
  if (node < 0) {
    list->Unknown(name, absl::StrCat(model, ", NUMA node not readable"), "`nvidia-smi topo -m` says what is near it");
    return;
  }
  const std::string found = absl::StrCat(model, ", on node ", node);
  const std::optional<NearestDevice> nearest = FindNearestDevice(root, devices, node);
  if (!nearest) {
    list->Ok(name, absl::StrCat(found, "; no RDMA device with an active port on a known node"));
  } else if (nearest->distance >= kFarDistance) {
    list->Warning(name, absl::StrCat(found, "; nearest RDMA device: ", nearest->Describe()),
                  "hops cross the link between sockets: a NIC next to the GPU is faster");
  } else {
    list->Ok(name, absl::StrCat(found, "; nearest RDMA device: ", nearest->Describe()));
  }
}

void ExamineRegistration(const SysRoot& root, const NvidiaDriver& driver, CheckList* list) {
  constexpr char kName[] = "RDMA to GPU memory";
  const bool dma_buf = driver.open && driver.major >= kDriverOfDmaBuf && KernelIsAtLeast(root, 5, 12);
  std::string peermem;  // the module that is loaded: the driver's own, or the one from when it came by itself
  for (const char* module : {"nv_peer_mem", "nvidia_peermem"}) {
    if (root.Exists(absl::StrCat("/sys/module/", module))) peermem = module;
  }
  if (dma_buf || !peermem.empty()) {
    list->Ok(kName, !dma_buf          ? peermem
                    : peermem.empty() ? "dma-buf"
                                      : absl::StrCat("dma-buf; ", peermem, " is loaded too"));
    return;
  }
  list->Warning(kName, "neither dma-buf nor nvidia_peermem: what the GPU sends goes through host memory",
                "dma-buf needs the open kernel module (515 or later) and Linux 5.12; else `modprobe nvidia_peermem`");
}

}  // namespace

void ExamineGpu(const DoctorHost& host, CheckList* list) {
  const std::vector<std::string> gpus = ListGpus(host.root);
  const std::optional<NvidiaDriver> driver = ReadNvidiaDriver(host.root);
  ExamineDriver(driver, !gpus.empty(), list);
  if (gpus.empty() && !driver) return;
  const std::vector<RdmaDevice> devices = ReadRdmaDevices(host.root);
  for (const std::string& address : gpus) ExamineGpuPlace(host.root, address, devices, list);
  if (driver) ExamineRegistration(host.root, *driver, list);
}

}  // namespace fastdecode
