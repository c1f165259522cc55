# Debian packages by CPack: files besides programs and headers, and what each package says of
# itself. Only with LUWU_PACKAGES, which scripts/package sets: it installs into /etc and /lib.
set(debian ${PROJECT_SOURCE_DIR}/deploy/debian)
set(generated ${CMAKE_BINARY_DIR}/generated)
set(LUWU_MAINTAINER "LuWu maintainers <luwu@packages.invalid>" CACHE STRING
  "Name and address of whoever builds the packages and answers for them")

# Manual pages and completions are made from what the programs say with --help.
set(pages luwud.8.gz luwud.toml.5.gz luwuctl.1.gz)
set(completions luwud.bash luwuctl.bash)
list(TRANSFORM pages PREPEND ${generated}/ OUTPUT_VARIABLE page_files)
list(TRANSFORM completions PREPEND ${generated}/ OUTPUT_VARIABLE completion_files)
set(scripts ${PROJECT_SOURCE_DIR}/scripts)
add_custom_command(OUTPUT ${page_files} ${completion_files}
  COMMAND ${scripts}/manual-pages $<TARGET_FILE_DIR:luwud> ${generated}
  COMMAND ${scripts}/bash-completion $<TARGET_FILE_DIR:luwud> ${generated}
  DEPENDS luwud luwuctl ${scripts}/manual-pages ${scripts}/bash-completion
          ${scripts}/program_help.py ${scripts}/config-reference
          ${PROJECT_SOURCE_DIR}/deploy/config/luwud.toml
  VERBATIM)
add_custom_target(luwu_packaged ALL DEPENDS ${page_files} ${completion_files} luwu)

install(FILES ${generated}/luwud.8.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man8 COMPONENT luwud)
install(FILES ${generated}/luwud.toml.5.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man5
  COMPONENT luwud)
install(FILES ${generated}/luwuctl.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1
  COMPONENT luwuctl)
foreach(program luwud luwuctl)
  install(FILES ${generated}/${program}.bash RENAME ${program}
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT ${program})
endforeach()

set(deploy ${PROJECT_SOURCE_DIR}/deploy)
set(examples ${CMAKE_INSTALL_DATADIR}/doc/luwud/examples)
install(FILES ${debian}/luwud.toml DESTINATION /etc/luwu COMPONENT luwud)
install(FILES ${deploy}/systemd/luwud.service DESTINATION /lib/systemd/system COMPONENT luwud)
install(FILES ${deploy}/systemd/luwud.sysusers RENAME luwud.conf
  DESTINATION lib/sysusers.d COMPONENT luwud)
install(FILES ${deploy}/systemd/luwud.tmpfiles RENAME luwud.conf
  DESTINATION lib/tmpfiles.d COMPONENT luwud)
install(FILES ${deploy}/config/luwud.toml ${deploy}/systemd/luwud-rdma.conf
  ${deploy}/prometheus/luwu.alerts.yml ${deploy}/prometheus/luwu.rules.yml
  DESTINATION ${examples} COMPONENT luwud)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/client/python/luwu
  DESTINATION lib/python3/dist-packages COMPONENT python3-luwu
  FILES_MATCHING PATTERN "*.py" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)

configure_file(${debian}/changelog.in ${generated}/changelog @ONLY)
execute_process(COMMAND gzip -n -9 -k -f ${generated}/changelog COMMAND_ERROR_IS_FATAL ANY)

set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_PACKAGE_NAME luwu)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # else the first line of every package
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_SOURCE_DIR}/build/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER ${LUWU_MAINTAINER})
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_COMPONENTS_ALL "")

# luwu_package(NAME SECTION s SUMMARY one line TEXT paragraph [ALL | SAME] [DEPENDS d] [SUGGESTS s])
#   ALL: the same on every architecture. SAME: those of two architectures can be installed together.
macro(luwu_package name)
  cmake_parse_arguments(ARG "ALL;SAME" "SECTION;SUMMARY;TEXT;DEPENDS;SUGGESTS" "" ${ARGN})
  string(TOUPPER ${name} upper)
  list(APPEND CPACK_COMPONENTS_ALL ${name})
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${ARG_SECTION})
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${ARG_SUMMARY}\n${ARG_TEXT}")
  if(ARG_ALL)
    set(CPACK_DEBIAN_${upper}_PACKAGE_ARCHITECTURE all)
    set(CPACK_DEBIAN_${upper}_PACKAGE_SHLIBDEPS OFF)
  endif()
  if(ARG_SAME)
    set(CPACK_DEBIAN_${upper}_PACKAGE_MULTIARCH same)
  endif()
  foreach(field DEPENDS SUGGESTS)
    if(ARG_${field})
      set(CPACK_DEBIAN_${upper}_PACKAGE_${field} "${ARG_${field}}")
    endif()
  endforeach()
  file(GLOB control CONFIGURE_DEPENDS ${debian}/${name}/*)
  set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA "${control}")
  install(FILES ${generated}/changelog.gz ${debian}/copyright
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${name} COMPONENT ${name})
  if(EXISTS ${debian}/overrides/${name})
    install(FILES ${debian}/overrides/${name}
      DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides COMPONENT ${name})
  endif()
endmacro()

set(about "LuWu keeps weights and optimizer state of models that are larger than GPU\n\
memory in the memory and on the NVMe drives of other hosts.")
luwu_package(luwud SECTION net
  SUMMARY "parameter service for training large models - daemon"
  TEXT "${about}\nThis is the daemon, which owns a share of every job's state."
  DEPENDS "systemd | systemd-standalone-sysusers, systemd | systemd-standalone-tmpfiles, \
init-system-helpers (>= 1.51)"
  SUGGESTS "luwuctl, ibverbs-providers, rdma-core, prometheus")
luwu_package(luwuctl SECTION admin
  SUMMARY "parameter service for training large models - command line"
  TEXT "${about}\nThis is the program that looks at daemons and their jobs, and manages them."
  SUGGESTS "bash-completion")
luwu_package(libluwu1 SAME SECTION libs
  SUMMARY "parameter service for training large models - client library"
  TEXT "${about}\nThis is the library that training processes use."
  SUGGESTS "ibverbs-providers")
luwu_package(libluwu-dev SAME SECTION libdevel
  SUMMARY "parameter service for training large models - development files"
  TEXT "${about}\nThese are the headers for C and C++, and files for pkg-config and CMake."
  DEPENDS "libluwu1 (= ${PROJECT_VERSION})")
luwu_package(python3-luwu ALL SECTION python
  SUMMARY "parameter service for training large models - Python package"
  TEXT "${about}\nThis is the Python package: sessions over numpy, and offloaded PyTorch modules."
  DEPENDS "python3:any (>= 3.10), python3-numpy, libluwu1 (>= ${PROJECT_VERSION})"
  SUGGESTS "python3-torch")
include(CPack)
