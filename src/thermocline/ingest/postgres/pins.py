"""The jars of Debezium's embedded engine: what reading Postgres needs of it, and no more.

Debezium asks for all of Kafka Connect, a web server included; the engine alone runs on these.
"""

from __future__ import annotations

DEBEZIUM = "3.6.3.Final"  # the newest whose embedded engine resolves
KAFKA = "4.3.0"  # the one that this Debezium is built with
JACKSON = "2.21.2"

SHA256 = {
    "com.datadoghq:sketches-java:0.8.2": (
        "b24c3d175556eb381ef2b2f0a7dffe7cb1fb7a9f893f41260822b5ec6cb13cca"
    ),
    "com.fasterxml.jackson.core:jackson-annotations:2.21": (
        "53ca085f4a150f703f49e1aabd935bd03b43e1ea3d55d135438292af22cef56b"
    ),
    f"com.fasterxml.jackson.core:jackson-core:{JACKSON}": (
        "12e8655b100267b44d0f14d01b1f5082a5105e616174dc4307be1a761e92407b"
    ),
    f"com.fasterxml.jackson.core:jackson-databind:{JACKSON}": (
        "8c982f01f148d805f0aaac2339011244757e0df7c6ff8951f2fa3f433b8ed849"
    ),
    f"com.fasterxml.jackson.datatype:jackson-datatype-jdk8:{JACKSON}": (
        "e581bbf3fc5622d16b57366dd41e10fc56921fb202879de2ef487f87dd9b30e7"
    ),
    f"com.fasterxml.jackson.datatype:jackson-datatype-jsr310:{JACKSON}": (
        "a083d57cd1c4a28fefcc6bd071740779eb7fc1c22a3c1b40451b5477c443f02f"
    ),
    f"com.fasterxml.jackson.module:jackson-module-blackbird:{JACKSON}": (
        "5ed62cdcd357a24b73de9280e167aa014d7b4c17d04823844d482274cf07097e"
    ),
    "com.google.protobuf:protobuf-java:3.25.5": (
        "8540247fad9e06baefa8fb45eb313802d019f485f14300e0f9d6b556ed88e753"
    ),
    f"io.debezium:debezium-api:{DEBEZIUM}": (
        "a91cec9b549c77538438aa6aa4b1090c1355de7b832afcb530bf1380bb5bb47e"
    ),
    f"io.debezium:debezium-config:{DEBEZIUM}": (
        "c3b6e4f8d2f1073a825ae27c8dd36e03b40cd479515601e068f461ff6a1c885c"
    ),
    f"io.debezium:debezium-connect-plugins:{DEBEZIUM}": (
        "e0db9f1bc6ad8a7c8ad906593b75235d0676348e12bbbca3e76ffa2c9e82c5da"
    ),
    f"io.debezium:debezium-connector-common:{DEBEZIUM}": (
        "9dbc002de4474c68a456e86863ea86d560376c434d73dfc8b0c86167d0abf4a7"
    ),
    f"io.debezium:debezium-connector-postgres:{DEBEZIUM}": (
        "b66e6fd8a36460d3edde2b04c72c99505b60c5bc4a049e5d48bc5d039b46f7d9"
    ),
    f"io.debezium:debezium-embedded:{DEBEZIUM}": (
        "e1ebba14d967dc478992ba58715d603a3a81a49a3beac4dac3b5f28d534f876e"
    ),
    f"io.debezium:debezium-openlineage-api:{DEBEZIUM}": (
        "ee746ebedb622454f71f29a09efff9f40c5107571d6ea534dc1c66d4c43eebfe"
    ),
    f"io.debezium:debezium-util:{DEBEZIUM}": (
        "cc39a8d1f570c49656cbe3176fcc8976f8d20ec053260c3eeba56e18d48e9c9b"
    ),
    f"org.apache.kafka:connect-api:{KAFKA}": (
        "7938f71e76e3b03cfba284a987a07d925533710166499264652e05eaba709429"
    ),
    f"org.apache.kafka:connect-json:{KAFKA}": (
        "4af42f973b7ed4def6d394055e9b46ea7da38f69c9d5a45fa4614b492a01ad2e"
    ),
    f"org.apache.kafka:connect-runtime:{KAFKA}": (
        "9c4a4a815302a23db37785729594f6362719fda62e6a74d812d1e2719995ec99"
    ),
    f"org.apache.kafka:connect-transforms:{KAFKA}": (
        "a1b6b347e26997e4e5ede01752a9ac572e8d938b48bf3a4b22c27890dca65b7e"
    ),
    f"org.apache.kafka:kafka-clients:{KAFKA}": (
        "97a5b492d4ad658fd2dfba969fa0e403c2e38c971fb1e083da4e391471925fc1"
    ),
    "org.apache.maven:maven-artifact:3.9.15": (
        "f154c31f15ac97c37b9cdf9f8d63cde5053c470d2daf54df7dfd3bb3c9e501c6"
    ),
    "org.postgresql:postgresql:42.7.13": (
        "6e0e4cc2d8cae902084f8a2b18728b073a6fd9d1f87c9d8bff8f298c18185b93"
    ),
    "org.slf4j:slf4j-api:1.7.36": (
        "d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0"
    ),
    "org.slf4j:slf4j-simple:1.7.36": (
        "2f39bed943d624dfa8f4102d0571283a10870b6aa36f197a8a506f147010c10f"
    ),
}
PACKAGES = tuple(SHA256)
