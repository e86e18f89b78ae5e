from __future__ import annotations

import pytest

from commprof.launched import Launched, launched_as, local_rank_of_task

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
OPEN_MPI = {
    **{"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"},
    **{"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_RANK": "5"},
}
MVAPICH = {
    **{"MV2_COMM_WORLD_RANK": "5", "MV2_COMM_WORLD_SIZE": "8"},
    **{"MV2_COMM_WORLD_LOCAL_RANK": "1", "MV2_COMM_WORLD_LOCAL_SIZE": "4"},
}
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
SRUN = {
    **{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"},
    **{"SLURM_NTASKS": "16", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"},
}
ON_MPI = Launched("mpirun", 5, 8, 1, 4)
ON_SRUN = Launched("srun", 1, 2, 0, None)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (TORCHRUN, Launched("torchrun", 3, 4, 1, 2)),
        (OPEN_MPI, ON_MPI),
        (MVAPICH, ON_MPI),
        (HYDRA, ON_MPI),
        (SRUN, ON_SRUN),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Launched("mpirun", 1, 2, None, None)),
        # Launchers can be nested. Slurm with PMI-2 also sets PMI_RANK and PMI_SIZE.
        ({**OPEN_MPI, **SRUN, **TORCHRUN}, Launched("torchrun", 3, 4, 1, 2)),
        ({**SRUN, **OPEN_MPI}, ON_MPI),
        ({**SRUN, **HYDRA}, ON_MPI),
        ({**SRUN, "PMI_RANK": "1", "PMI_SIZE": "2"}, ON_SRUN),
    ],
)
def test_a_rank_of_each_launcher(variables: dict[str, str], expected: Launched) -> None:
    assert launched_as(variables) == expected


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"RANK": "0"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "1"},
        {"RANK": "", "WORLD_SIZE": ""},
        # Slurm gives these step IDs, or none, to batch scripts and to the shells of salloc.
        {key: value for key, value in SRUN.items() if key != "SLURM_STEP_ID"},
        {**SRUN, "SLURM_STEP_ID": str(0xFFFF_FFFB)},
        {**SRUN, "SLURM_STEP_ID": str(0xFFFF_FFFA), "SLURM_STEP_NUM_TASKS": "1"},
        {**SRUN, "SLURM_STEP_ID": "batch"},
    ],
)
def test_variables_that_make_no_rank(variables: dict[str, str]) -> None:
    assert launched_as(variables) is None


def test_the_local_rank_of_a_task() -> None:
    assert [local_rank_of_task(each) for each in (OPEN_MPI, MVAPICH, HYDRA)] == [1, 1, 1]
    assert local_rank_of_task({"SLURM_LOCALID": "3"}) == 3
    assert local_rank_of_task({}) == 0
