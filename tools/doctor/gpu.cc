#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/doctor/doctor.h"
#include "tools/doctor/rdma.h"

namespace fastdecode {

namespace {

constexpr char kPci[] = "/sys/bus/pci/devices/";
constexpr char kNvidia[] = "0x10de";
constexpr char kNvidiaVersion[] = "/proc/driver/nvidia/version";
constexpr int kDriverOfDmaBuf = 515;

// PCI addresses of NVIDIA's VGA (0x0300) and 3D (0x0302) controllers.
std::vector<std::string> ListGpus(const SysRoot& root) {
  std::vector<std::string> gpus;
  for (const std::string& address : root.List(kPci)) {
    const std::string device_class = root.Text(absl::StrCat(kPci, address, "/class")).value_or("").substr(0, 6);
    if (root.Text(absl::StrCat(kPci, address, "/vendor")) != kNvidia) continue;
    if (device_class == "0x0300" || device_class == "0x0302") gpus.push_back(address);
  }
  return gpus;
}

// The driver as /proc/driver/nvidia/version names it.
struct Driver {
  std::string version;  // "550.54.14"
  int major = 0;
  bool open = false;  // the open kernel module, whose GPL symbols dma-buf needs
};

// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build  (...)": the version is the first
// word that starts with a digit.
std::optional<Driver> ReadDriver(const SysRoot& root) {
  const std::optional<std::string> line = root.Field(kNvidiaVersion, "NVRM version");
  if (!line) return std::nullopt;
  Driver driver;
  driver.open = line->find("Open Kernel Module") != std::string::npos;
  std::istringstream words(*line);
  for (std::string word; driver.version.empty() && words >> word;) {
    if (word[0] >= '0' && word[0] <= '9') driver.version = word;
  }
  std::istringstream(driver.version) >> driver.major;
  return driver;
}

// Whether the running kernel is at least `major`.`minor`.
bool KernelIsAtLeast(const SysRoot& root, int major, int minor) {
  std::istringstream release(root.Text("/proc/sys/kernel/osrelease").value_or(""));
  int found_major = 0, found_minor = 0;
  char dot;
  release >> found_major >> dot >> found_minor;
  return found_major > major || (found_major == major && found_minor >= minor);
}

void ExamineDriver(const std::optional<Driver>& driver, bool has_gpu, CheckList* list) {
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
  const std::string model =
      root.Field(absl::StrCat("/proc/driver/nvidia/gpus/", address, "/information"), "Model").value_or("NVIDIA GPU");
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

void ExamineRegistration(const SysRoot& root, const Driver& driver, CheckList* list) {
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
  const std::optional<Driver> driver = ReadDriver(host.root);
  ExamineDriver(driver, !gpus.empty(), list);
  if (gpus.empty() && !driver) return;
  const std::vector<RdmaDevice> devices = ReadRdmaDevices(host.root);
  for (const std::string& address : gpus) ExamineGpuPlace(host.root, address, devices, list);
  if (driver) ExamineRegistration(host.root, *driver, list);
}

}  // namespace fastdecode
