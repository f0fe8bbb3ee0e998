# One CMake target a folder of src/. A target's include directory shows it only the folders that it may include from:
#   core <- {reference, cpu, cuda} <- dispatch <- layers <- models <- lab <- {tools, python, web}

# Compiler results are kept by ccache, with paths relative to the source folder, so that a second clone finds them too.
find_program(ROOTDK_CCACHE ccache)
if(ROOTDK_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(rootdk_launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${ROOTDK_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${rootdk_launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${rootdk_launcher})
endif()

# rootdk_compile_in_groups(target): several sources compile as one, so that the headers they share are read once in
# a first build. Names in anonymous namespaces are then unique in the target. The preset `clang` of
# `make check` compiles every source alone.
option(ROOTDK_UNITY "Compile the sources of some targets in groups" ON)
function(rootdk_compile_in_groups target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${ROOTDK_UNITY} UNITY_BUILD_BATCH_SIZE 6)
endfunction()

set(rootdk_warnings -Wall -Wextra)
if(ROOTDK_WERROR)
  list(APPEND rootdk_warnings -Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_FLAGS MATCHES "-fsanitize")
    # GCC's manual: sanitizers change what these warnings of the optimiser see, and they err.
    foreach(warning array-bounds dangling-pointer free-nonheap-object maybe-uninitialized nonnull restrict stringop-overflow
        stringop-overread uninitialized)
      list(APPEND rootdk_warnings -Wno-error=${warning})
    endforeach()
  endif()
endif()

# rootdk_include_only(target module folders...): the target's include directory holds links to these folders of src/ alone,
# so that including from any other folder fails to compile. It is modules/MODULE in the build folder.
function(rootdk_include_only target module)
  set(view ${PROJECT_BINARY_DIR}/modules/${module})
  if(EXISTS ${view})
    file(GLOB shown RELATIVE ${view} ${view}/*)
    set(wanted ${module} ${ARGN})
    list(SORT shown)
    list(SORT wanted)
    if(NOT shown STREQUAL wanted)
      file(REMOVE_RECURSE ${view})
    endif()
  endif()
  file(MAKE_DIRECTORY ${view})
  foreach(folder ${module} ${ARGN})
    if(NOT IS_DIRECTORY ${PROJECT_SOURCE_DIR}/src/${folder})
      message(FATAL_ERROR "${target} includes from src/${folder}, which is no folder")
    endif()
    file(RELATIVE_PATH to ${view} ${PROJECT_SOURCE_DIR}/src/${folder})
    if(NOT IS_SYMLINK ${view}/${folder})
      file(CREATE_LINK ${to} ${view}/${folder} SYMBOLIC)
    endif()
  endforeach()
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${view})
endfunction()

# rootdk_module(core SOURCES a.cpp b.cpp MAY_INCLUDE other modules...): a module of the library proper, as objects.
function(rootdk_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;MAY_INCLUDE" ${ARGN})
  add_library(rootdk_${name} OBJECT ${ARG_SOURCES})
  rootdk_include_only(rootdk_${name} ${name} ${ARG_MAY_INCLUDE})
  target_compile_options(rootdk_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${rootdk_warnings}>)
endfunction()

# rootdk_upper_module(models SOURCES ... MAY_INCLUDE ... LIBRARIES ...): a module above the library, as an archive.
function(rootdk_upper_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;MAY_INCLUDE;LIBRARIES" ${ARGN})
  add_library(rootdk_${name} STATIC ${ARG_SOURCES})
  rootdk_include_only(rootdk_${name} ${name} ${ARG_MAY_INCLUDE})
  target_compile_options(rootdk_${name} PRIVATE ${rootdk_warnings})
  target_link_libraries(rootdk_${name} ${ARG_LIBRARIES})
endfunction()

# Tools and tests may include from every folder of src/.
function(rootdk_include_everything target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
endfunction()

# Sources that handle text (arguments, settings, JSON, HTML) and compute nothing: the optimiser takes a third of their compile
# time for a gain that cannot be noticed. Call it in the folder of the target.
function(rootdk_text_sources)
  set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
endfunction()

# Tells where the source tree lies to those sources that ask; the others compile to the same object in every clone.
function(rootdk_name_paths)
  foreach(source IN LISTS ARGN)
    file(STRINGS ${source} asks REGEX "ROOTDK_(SOURCE_DIR|TEST_DATA)" LIMIT_COUNT 1)
    if(asks)
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS
        ROOTDK_SOURCE_DIR="${PROJECT_SOURCE_DIR}" ROOTDK_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
    endif()
  endforeach()
endfunction()

# Tests that start threads: what the thread sanitizer looks at. `cmake --build BUILD --target thread_tests` builds them.
if(NOT TARGET thread_tests)
  add_custom_target(thread_tests)
endif()

# rootdk_test(core_tensor_test SOURCES tensor_test.cpp [LIBRARIES ...] [LABELS ...] [TIMEOUT seconds])
# Every test program is one CTest test; GoogleTest prints the cases.
function(rootdk_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  rootdk_include_everything(${name})
  rootdk_name_paths(${ARG_SOURCES})
  target_compile_options(${name} PRIVATE ${rootdk_warnings})
  target_link_libraries(${name} PRIVATE rootdk_internal ${ARG_LIBRARIES} GTest::gtest GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 1500)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  if(threads IN_LIST ARG_LABELS)
    add_dependencies(thread_tests ${name})
  endif()
endfunction()
