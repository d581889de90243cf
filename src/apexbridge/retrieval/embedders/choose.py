"""The embedder that the settings ask for."""

from apexbridge.errors import ServerError
from apexbridge.retrieval.config import RetrievalSettings
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.retrieval.embedders.endpoint import EndpointModel
from apexbridge.retrieval.embedders.english import find_english_model
from apexbridge.retrieval.embedders.model import Model
from apexbridge.retrieval.embedders.multilingual import MultilingualModel


def choose_embedder(settings: RetrievalSettings) -> Embedder:
    """Nothing is loaded yet.

    Raises:
        ServerError: INVALID_SETTING, an endpoint without address or model.
    """
    if settings.embedding == "openai":
        if not settings.base_url or not settings.model:
            raise ServerError(
                "APEX_EMBEDDING=openai needs APEX_EMBEDDING_BASE_URL and APEX_EMBEDDING_MODEL.", code="INVALID_SETTING"
            )
        return Embedder([EndpointModel(base_url=settings.base_url, model=settings.model, api_key=settings.api_key)])
    models: list[Model] = [MultilingualModel()]
    if english := find_english_model():
        models.append(english)
    return Embedder(models)
