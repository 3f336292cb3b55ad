"""Setting a person up: a dev box is made, the person signs in there, and then the person's own manager takes over.

Each step is written into the person's row before it is done, so that it is done once however often it is begun; and
each is only looked at and never waited for: the person asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from operator_dataverse.chat.desk import Done
from operator_dataverse.client import Dataverse, Row
from operator_dataverse.errors import DataverseError, NotConfigured, Refused
from operator_dataverse.fleet.changes import change
from operator_dataverse.fleet.devboxes import DevBoxes, next_name
from operator_dataverse.fleet.users import Users
from operator_dataverse.settings import DataverseSettings
from operator_dataverse.tables.schema import USERS
from operator_dataverse.tables.user import DevBoxStatus, OnboardingStep, UserRow
from operator_dataverse.tables.values import text_of
from operator_dataverse.teams.authentication import authentication_instructions

__all__ = ["Onboarding", "OpenBoxes"]

OpenBoxes = Callable[[str], AbstractAsyncContextManager[DevBoxes]]
"""From the directory id of a person to that person's dev boxes."""

_DIRECTORY_ID = "azureactivedirectoryobjectid"


class Onboarding:
    """Sets people up.

    Args:
        dataverse: The open service.
        users: Its table of people.
        open_boxes: Opens the dev boxes of a person.
    """

    def __init__(self, dataverse: Dataverse, users: Users, open_boxes: OpenBoxes) -> None:
        self._dataverse = dataverse
        self._users = users
        self._open_boxes = open_boxes

    @classmethod
    def open(cls, settings: DataverseSettings, dataverse: Dataverse, users: Users) -> Onboarding:
        """With the dev boxes of the settings."""
        return cls(dataverse, users, lambda user: DevBoxes.open(settings, user=user))

    async def state(self, email: str) -> Done:
        """How far the person is; nothing is changed."""
        return Done(_described(await self._users.get(email)))

    async def advance(self, email: str) -> Done:
        """Do what is next for a person, and say how far that is."""
        try:
            return await self._advance(email)
        except NotConfigured:
            return Done("Dev boxes are not provisioned by this installation; ask an administrator for one.", False)
        except DataverseError as error:
            return Done(f"The set-up could not go on: {error}", False)

    async def _advance(self, email: str) -> Done:
        state = await self._users.get(email)
        if state is None or state.onboarding_step is None:
            state = await self._users.set(email, {"onboarding_step": OnboardingStep.AWAITING_SETUP})
        if state.onboarding_step == OnboardingStep.COMPLETED:
            return Done(_described(state))
        user_id = state.azure_ad_id or await self._directory_id(email)
        if user_id is None:
            return Done(
                f"Nobody with the address {email} is in the directory of this organisation; an administrator has to "
                "add this person, or set the id with `operator-dataverse users set`.",
                False,
            )
        async with self._open_boxes(user_id) as boxes:
            if not state.devbox_name or state.onboarding_step == OnboardingStep.AWAITING_SETUP:
                state = await self._choose(state, user_id, boxes)
            return await self._bring_on(state, boxes)

    async def _choose(self, state: UserRow, user_id: str, boxes: DevBoxes) -> UserRow:
        """Give the person the name of a box, before there is one; whoever comes second takes the first one's."""
        free = state.devbox_name or next_name({box.name for box in await boxes.list()})

        def decide(row: Row) -> Mapping[str, Any] | None:
            known = UserRow.parse(row)
            if known.onboarding_step not in (None, OnboardingStep.AWAITING_SETUP):
                return None
            return {
                "crb3b_devboxname": known.devbox_name or free,
                "crb3b_devboxstatus": DevBoxStatus.PROVISIONING,
                "crb3b_onboardingstep": OnboardingStep.PROVISIONING,
                "crb3b_azureadid": user_id,
            }

        row = await change(self._dataverse, USERS, state.id, decide)
        if row is None:
            raise DataverseError(f"The row of {state.email} was deleted meanwhile; try again.")
        return UserRow.parse(row)

    async def _bring_on(self, state: UserRow, boxes: DevBoxes) -> Done:
        name = state.devbox_name
        if not name:
            raise Refused(f"The row of {state.email} names no dev box; set it with `operator-dataverse users set`.")
        box = await boxes.get(name)
        if box is None:
            # A request that was written down and never made, or a box that somebody removed.
            await boxes.provision(name)
            box = await boxes.get(name)
        if box is not None and box.ready:
            web = await _web_address(boxes, name)
            step = OnboardingStep.AUTH_CODE_SENT
            await self._users.set(state.email, {"devbox_status": DevBoxStatus.SUCCEEDED, "onboarding_step": step})
            how = authentication_instructions(box=name, rdp_url=web or None)
            return Done(f"The dev box {name} is ready; the person has to sign in there now.", show=how)
        if box is not None and box.failed:
            step = OnboardingStep.PROVISIONING_FAILED
            await self._users.set(state.email, {"devbox_status": DevBoxStatus.FAILED, "onboarding_step": step})
            why = box.error or "no reason given"
            return Done(f"The dev box {name} could not be made ({why}); an administrator has to look at it.", False)
        step = OnboardingStep.WAITING_PROVISIONING
        await self._users.set(state.email, {"devbox_status": DevBoxStatus.PROVISIONING, "onboarding_step": step})
        return Done(f"The dev box {name} is being made; that takes up to an hour. Ask again then.")

    async def _directory_id(self, email: str) -> str | None:
        found = await self._dataverse.owners.user(email)
        return None if found is None else text_of(found, _DIRECTORY_ID) or None


async def _web_address(boxes: DevBoxes, name: str) -> str:
    try:
        return (await boxes.connection(name)).web_url
    except Refused:
        return ""  # a box that sleeps has none, and is found at the portal all the same


def _described(state: UserRow | None) -> str:
    if state is None or state.onboarding_step in (None, OnboardingStep.AWAITING_SETUP):
        return "Nothing is set up for this person yet: there is no dev box."
    box = state.devbox_name or "the dev box"
    match state.onboarding_step:
        case OnboardingStep.PROVISIONING | OnboardingStep.WAITING_PROVISIONING:
            return f"{box} is being made; that takes up to an hour."
        case OnboardingStep.PROVISIONING_FAILED:
            return f"{box} could not be made; an administrator has to look at it."
        case OnboardingStep.AUTH_PENDING | OnboardingStep.AUTH_CODE_SENT:
            return f"{box} is ready; the person has to sign in there."
        case OnboardingStep.COMPLETED:
            return f"Everything is set up; {box} is the person's dev box."
