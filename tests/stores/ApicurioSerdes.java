import com.google.protobuf.DescriptorProtos.DescriptorProto;
import com.google.protobuf.DescriptorProtos.FieldDescriptorProto;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import io.apicurio.registry.serde.avro.AvroKafkaDeserializer;
import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import io.apicurio.registry.serde.protobuf.ProtobufKafkaDeserializer;
import io.apicurio.registry.serde.protobuf.ProtobufKafkaSerializer;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;

/**
 * Values as Apicurio's serializers frame them, which register their schemas: prints a topic, a way
 * and a value in hex on each line. Or, with a topic and a value, what the deserializers read.
 */
class ApicurioSerdes {
    static final HexFormat HEX = HexFormat.of();
    static final Map<String, Map<String, Object>> WAYS = Map.of(
            "eight", Map.of(),
            "four", Map.of("apicurio.registry.as-confluent", true));

    public static void main(String[] args) throws Exception {
        if (args.length > 1) {
            System.out.println("read " + read(args[0], args[1], HEX.parseHex(args[2])));
            return;
        }
        for (var way : WAYS.keySet()) {
            for (var topic : List.of("first", "second")) {
                try (var serializer = new AvroKafkaSerializer<GenericRecord>()) {
                    serializer.configure(settings(args[0], WAYS.get(way)), false);
                    var record = new GenericData.Record(avro());
                    record.put("id", 7L);
                    print(topic, way, serializer.serialize(topic, record));
                }
            }
            for (var message : file().getMessageTypes()) {
                try (var serializer = new ProtobufKafkaSerializer<DynamicMessage>()) {
                    serializer.configure(settings(args[0], WAYS.get(way)), false);
                    print("proto", way, serializer.serialize("proto", five(message)));
                }
            }
        }
    }

    static Object read(String url, String topic, byte[] value) {
        if (topic.equals("proto")) {
            try (var deserializer = new ProtobufKafkaDeserializer<DynamicMessage>()) {
                deserializer.configure(settings(url, Map.of()), false);
                DynamicMessage found = deserializer.deserialize(topic, value);
                return found.getDescriptorForType().getName() + " " + found.toString().trim();
            }
        }
        try (var deserializer = new AvroKafkaDeserializer<GenericRecord>()) {
            deserializer.configure(settings(url, Map.of()), false);
            return deserializer.deserialize(topic, value);
        }
    }

    static Map<String, Object> settings(String url, Map<String, Object> more) {
        var settings = new HashMap<String, Object>(more);
        settings.put("apicurio.registry.url", url);
        settings.put("apicurio.registry.auto-register", true);
        return settings;
    }

    static void print(String topic, String way, byte[] value) {
        System.out.println(topic + " " + way + " " + HEX.formatHex(value));
    }

    static Schema avro() {
        return new Schema.Parser().parse(
                "{\"type\":\"record\",\"name\":\"O\",\"fields\":[{\"name\":\"id\",\"type\":\"long\"}]}");
    }

    static FileDescriptor file() throws Exception {
        var file = FileDescriptorProto.newBuilder()
                .setName("made.proto").setPackage("made").setSyntax("proto3");
        for (var name : List.of("Order", "Late")) {
            var field = FieldDescriptorProto.newBuilder().setName("x").setNumber(1)
                    .setType(FieldDescriptorProto.Type.TYPE_INT32)
                    .setLabel(FieldDescriptorProto.Label.LABEL_OPTIONAL);
            file.addMessageType(DescriptorProto.newBuilder().setName(name).addField(field));
        }
        return FileDescriptor.buildFrom(file.build(), new FileDescriptor[0]);
    }

    static DynamicMessage five(Descriptor message) {
        return DynamicMessage.newBuilder(message)
                .setField(message.findFieldByName("x"), 5).build();
    }
}
